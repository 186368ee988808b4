package localapi

// Relays is how many watches are relayed now.
func (s *Server) Relays() int { return s.relays.Open() }
