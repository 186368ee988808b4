package deletionguard

import (
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

// losses returns these numbers of missing, foreign missing, recently gone and live pods.
func losses(missing, foreign, recent, live int) podLosses {
	l := podLosses{missing: make([]lostPod, missing), recent: recent, live: live}
	for range foreign {
		l.missing = append(l.missing, lostPod{foreignEpoch: true})
	}
	return l
}

func TestGuard_HoldReason(t *testing.T) {
	for name, tt := range map[string]struct {
		share                          float64
		missing, foreign, recent, live int
		want                           wire.HoldReason
	}{
		"nothing":                 {share: 0.5, live: 10},
		"all":                     {share: 0.5, missing: 10, live: 10, want: wire.HoldMassDelete},
		"half":                    {share: 0.5, missing: 5, live: 10},
		"more than half":          {share: 0.5, missing: 6, live: 10, want: wire.HoldMassDelete},
		"all of few":              {share: 0.5, missing: 4, live: 4},
		"five of five":            {share: 0.5, missing: 5, live: 5, want: wire.HoldMassDelete},
		"with those before":       {share: 0.5, missing: 1, recent: 4, live: 3, want: wire.HoldMassDelete},
		"those before were live":  {share: 0.5, missing: 1, recent: 4, live: 8},
		"only those before":       {share: 0.5, recent: 6, live: 1},
		"off":                     {missing: 10, live: 10},
		"all are never above all": {share: 1, missing: 10, live: 10},
		"one after a restore":     {share: 0.5, foreign: 1, live: 100, want: wire.HoldRestored},
		"restore with guard off":  {foreign: 1, live: 100, want: wire.HoldRestored},
	} {
		if got := (Guard{Share: tt.share, Minimum: 5}).holdReason(losses(tt.missing, tt.foreign, tt.recent, tt.live)); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
