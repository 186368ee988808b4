package localapi

import (
	"github.com/frond-edge/frond/leaf/localapi/limit"
)

// MaxRelays and MaxAccountRelays are maxRelays and maxAccountRelays.
const MaxRelays, MaxAccountRelays = maxRelays, limit.MaxAccountRelays

// Relays is how many watches are relayed now.
func (s *Server) Relays() int { return len(s.relaySlots) }
