package localapi

// MaxRelays and MaxAccountRelays are maxRelays and maxAccountRelays.
const MaxRelays, MaxAccountRelays = maxRelays, maxAccountRelays

// Relays is how many watches are relayed now.
func (s *Server) Relays() int { return len(s.relaySlots) }
