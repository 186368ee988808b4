package broker

import "golang.org/x/time/rate"

// LimitDevices replaces the limit of messages of each device. Call it before Start.
func (s *Server) LimitDevices(perSecond rate.Limit, burst int) {
	s.bridge.rate, s.bridge.burst = perSecond, burst
}
