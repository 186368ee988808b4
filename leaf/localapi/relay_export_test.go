package localapi

// MaxRelays is maxRelays.
const MaxRelays = maxRelays

// Relays is how many watches are relayed now.
func (s *Server) Relays() int { return len(s.relays) }
