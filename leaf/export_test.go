package leaf

import (
	"time"

	"github.com/frond-edge/frond/leaf/redial"
)

// Options exports the pure functions for the golden test: the server's options, and those of its link's second turn.
func Options(cfg Config) (any, any, error) {
	cfg = cfg.withDefaults()
	r, err := remoteOptions(cfg, 1)
	return serverOptions(cfg), r, err
}

// RedialMax returns the longest pause between two dials.
func (s *Server) RedialMax() time.Duration { return s.redialMax.duration() }

// Dial returns the progress of the current dial.
func (s *Server) Dial() redial.Dial { return s.dial.current() }
