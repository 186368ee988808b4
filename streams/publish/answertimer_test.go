package publish

import (
	"testing"
	"time"
)

func TestAnswerTimer_FollowsTheHub(t *testing.T) {
	repeat := func(n int, took time.Duration) (all []time.Duration) {
		for range n {
			all = append(all, took)
		}
		return all
	}
	for name, tt := range map[string]struct {
		took      []time.Duration
		attempt   int
		low, high time.Duration
	}{
		"nothing measured":            {nil, 0, time.Second, time.Second},
		"a fast hub":                  {repeat(100, 3*time.Millisecond), 0, minAnswerTimeout, minAnswerTimeout},
		"a repetition waits longer":   {repeat(100, 3*time.Millisecond), 1, 2 * minAnswerTimeout, 2 * minAnswerTimeout},
		"a slow hub":                  {repeat(100, time.Second), 0, time.Second, 1100 * time.Millisecond},
		"one late answer":             {append(repeat(100, 3*time.Millisecond), time.Second), 0, time.Second, 2 * time.Second},
		"the late answer is past":     {append(append(repeat(100, 3*time.Millisecond), time.Second), repeat(50, 3*time.Millisecond)...), 0, minAnswerTimeout, minAnswerTimeout},
		"a very slow hub":             {repeat(100, 10*time.Second), 0, maxAnswerTimeout, maxAnswerTimeout},
		"repeated for as long as can": {repeat(100, time.Millisecond), 1000, maxAnswerTimeout, maxAnswerTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			var timer answerTimer
			for _, took := range tt.took {
				timer.observe(took)
			}
			if got := timer.timeout(tt.attempt); got < tt.low || got > tt.high {
				t.Errorf("waits %s, want %s to %s", got, tt.low, tt.high)
			}
		})
	}
}
