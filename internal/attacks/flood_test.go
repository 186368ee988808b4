package attacks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/streams"
)

const (
	// floodTime is how long each flood lasts.
	floodTime = 4 * time.Second
	// budget is what a cloudcore's memory may grow to, whatever a gateway sends.
	budget = 768 << 20
)

// floods are messages that a gateway may send, as fast as its link takes them.
func floods(t *testing.T) map[string]func(th *thief, i int) {
	t.Helper()
	report := func(i int) string { return fmt.Sprintf("report.%s.core.pods.default.flood-%d", stolen, i) }
	headers := func(i int, more ...string) []string {
		return append([]string{
			"Frond-Version: 1", "Frond-Op: apply", fmt.Sprintf("Frond-UID: %d", i), "Frond-Store: thief", fmt.Sprintf("Frond-Order: %d", i),
			"Frond-Time: " + time.Now().UTC().Format(time.RFC3339Nano),
		}, more...)
	}
	large := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"x":"` + strings.Repeat("x", 900<<10) + `"}`)
	deep, packed := []byte(nested(10_000)), bomb(t)
	many := make([]string, 2000)
	for i := range many {
		many[i] = fmt.Sprintf("X-%d: %s", i, strings.Repeat("y", 500))
	}
	return map[string]func(th *thief, i int){
		"tiny reports":       func(th *thief, i int) { th.publish(report(i), "", []byte("{}"), headers(i)...) },
		"large reports":      func(th *thief, i int) { th.publish(report(i%100), "", large, headers(i)...) },
		"deep reports":       func(th *thief, i int) { th.publish(report(i), "", deep, headers(i)...) },
		"null reports":       func(th *thief, i int) { th.publish(report(i), "", []byte("null"), headers(i)...) },
		"reports of headers": func(th *thief, i int) { th.publish(report(i%100), "", []byte("{}"), headers(i, many...)...) },
		"bombs":              func(th *thief, i int) { th.publish(report(i%100), "", packed, headers(i, "Content-Encoding: zstd")...) },
		"beats": func(th *thief, _ int) {
			th.publish(streams.BeatSubject(stolen), "", []byte(`{"storeEpoch":"thief","healthy":true}`))
		},
		"beats that are none": func(th *thief, _ int) { th.publish(streams.BeatSubject(stolen), "", []byte("null")) },
		"calls": func(th *thief, _ int) {
			th.publish(streams.CallSubject(stolen, streams.VerbPing), th.inbox(), []byte("{}"))
		},
		"calls that are none": func(th *thief, _ int) { th.publish(streams.CallSubject(stolen, "x"), th.inbox(), deep) },
		"questions to the API": func(th *thief, _ int) {
			th.publish(streams.CallSubject(stolen, streams.VerbKube), th.inbox(), []byte(`{"method":"GET","path":"/api/v1/secrets"}`))
		},
	}
}

// TestAFloodDrownsNobody has the thief send as fast as it can, and looks at the others and at cloudcore's memory meanwhile.
func TestAFloodDrownsNobody(t *testing.T) {
	l := steal(t, stolen)
	stir(t)
	for name, send := range floods(t) {
		t.Run(name, func(t *testing.T) {
			th := l.breakIn(t, nil)
			ctx, cancel := context.WithTimeout(t.Context(), floodTime)
			defer cancel()
			sent := make(chan int, 1)
			go func() {
				n := 0
				for ; ctx.Err() == nil && !over(th); n++ {
					send(th, n)
				}
				sent <- n
			}()
			began := time.Now()
			stir(t)
			took := time.Since(began)
			<-ctx.Done()
			most := 0.0
			for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
				rss, err := shared.Metric(t.Context(), part, "process_resident_memory_bytes")
				if err != nil {
					t.Errorf("%s does not answer: %v", part, err)
				}
				most = max(most, rss)
			}
			if most > budget {
				t.Errorf("a cloudcore takes %.0f MB", most/1e6)
			}
			_ = th.conn.Close()
			t.Logf("%d messages, the victim's change took %s, cloudcore has %.0f MB", <-sent, took.Round(time.Millisecond), most/1e6)
		})
	}
	began := time.Now()
	stir(t)
	if heard := answered(t, honest); heard != honest {
		t.Errorf("%d of the victim's %d calls were answered", heard, honest)
	}
	t.Logf("afterwards: %s; %v", time.Since(began).Round(time.Millisecond), topologySizes(t))
}
