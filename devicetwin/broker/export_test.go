package broker

import (
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"
)

// LimitDevices replaces the limit of messages of each device. Call it before Start.
func (s *Server) LimitDevices(perSecond rate.Limit, burst int) {
	s.bridge.rate, s.bridge.burst = perSecond, burst
}

// JetStream returns the connection to the running broker's own JetStream.
func (s *Server) JetStream() jetstream.JetStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.js
}
