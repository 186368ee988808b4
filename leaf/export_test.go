package leaf

import "time"

// Options shows the pure function to the golden test.
func Options(cfg Config, seed string) (any, error) {
	o, err := options(cfg.withDefaults(), secrets{seed: seed})
	return o, err
}

// RedialTimes runs the redial plan through outages. Positive steps are outages, negative ones links; it returns the pauses
// between the dials of each outage.
func RedialTimes(jitter float64, steps ...time.Duration) [][]time.Duration {
	p := redialPlan{min: 2 * time.Second, max: 15 * time.Second, jitter: func() float64 { return jitter }}
	now := time.Unix(0, 0)
	var all [][]time.Duration
	for _, d := range steps {
		if d < 0 {
			p.up(now)
			now = now.Add(-d)
			continue
		}
		end, last := now.Add(d), now
		p.down(now)
		var pauses []time.Duration
		for ; now.Before(end); now = now.Add(100 * time.Millisecond) {
			if p.due(now) {
				pauses = append(pauses, now.Sub(last))
				last = now
				p.dialled(now)
			}
		}
		all = append(all, pauses)
	}
	return all
}

// Turn makes the dialer of a running server replace its remote, as it does when the server refuses a redial for long.
func (s *Server) Turn() error {
	sec, err := readSecrets(s.cfg)
	if err != nil {
		return err
	}
	s.mu.Lock()
	d := newDialer(s.nats, s.cfg, sec)
	s.mu.Unlock()
	d.refused = giveUp
	return d.redial()
}
