package membership

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"
)

// All connections of a failed replica are closed concurrently, though a server that died with it does not answer; then
// the nodes are notified, whatever the result.
func TestPeerFencer_ClosesConnectionsThenNotifies(t *testing.T) {
	lost, died := make(chan FailedPeer), make(chan string)
	var mu sync.Mutex
	kicked := map[Link]bool{}
	both := make(chan struct{})
	kick := func(_ context.Context, server string, client uint64) (bool, error) {
		mu.Lock()
		kicked[Link{server, client}] = true
		if len(kicked) == 2 {
			close(both)
		}
		mu.Unlock()
		<-both // neither waits for the other
		if server == "dead" {
			return false, errors.New("no answer")
		}
		return true, nil
	}
	s := NewPeerFencer(lost, kick, died, prometheus.NewRegistry(), zaptest.NewLogger(t))
	runPart(t, s.Start)
	lost <- FailedPeer{member: "b", links: []Link{{"dead", 1}, {"alive", 2}}}
	for _, want := range []string{"b", "c"} {
		select {
		case who := <-died:
			if who != want {
				t.Errorf("%s died, want %s", who, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nobody is told of %s", want)
		}
		if want == "b" {
			lost <- FailedPeer{member: "c"} // of an older version
		}
	}
	if closed := testutil.ToFloat64(s.closedConns); closed != 1 || !kicked[Link{"dead", 1}] {
		t.Errorf("%v closed of %v", closed, kicked)
	}
}
