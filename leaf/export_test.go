package leaf

import "time"

// Options exports the pure functions for the golden test: the server's options, and those of its link's second turn.
func Options(cfg Config) (any, any, error) {
	cfg = cfg.withDefaults()
	r, err := remoteOptions(cfg, 1)
	return serverOptions(cfg), r, err
}

// RedialTimes runs a redialBackoff through outages. Positive steps are outages, negative ones links; it returns the pauses between the
// dials of each outage.
func RedialTimes(jitter float64, steps ...time.Duration) [][]time.Duration {
	p := redialBackoff{min: 2 * time.Second, max: 15 * time.Second, jitter: func() float64 { return jitter }}
	now := time.Unix(0, 0)
	var all [][]time.Duration
	for _, d := range steps {
		if d < 0 {
			p.endOutage(now)
			now = now.Add(-d)
			continue
		}
		end, last := now.Add(d), now
		p.startOutage(now)
		var pauses []time.Duration
		for ; now.Before(end); now = now.Add(100 * time.Millisecond) {
			if p.due(now) {
				pauses = append(pauses, now.Sub(last))
				last = now
				p.scheduleNext(now)
			}
		}
		all = append(all, pauses)
	}
	return all
}
