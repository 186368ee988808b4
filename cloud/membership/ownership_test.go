package membership

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestOwner_SpreadsEvenlyAndMovesLittle(t *testing.T) {
	three, two := []string{"a", "b", "c"}, []string{"a", "c"}
	count := map[string]int{}
	const nodes = 3000
	for i := range nodes {
		node := fmt.Sprint("edge-", i)
		before, after := ownerOf(three, node), ownerOf(two, node)
		count[before]++
		if before != "b" && before != after {
			t.Fatalf("%s moved from %s to %s though its owner lives", node, before, after)
		}
	}
	for _, member := range three {
		if n := count[member]; n < nodes/3-nodes/10 || n > nodes/3+nodes/10 {
			t.Errorf("%s owns %d of %d nodes", member, n, nodes)
		}
	}
	if got := ownerOf(nil, "edge-1"); got != "" {
		t.Errorf("without members %q owns a node", got)
	}
}

// startMember runs one replica's view of the members until stop.
func startMember(t *testing.T, self string, kv jetstream.KeyValue) (m *Members, stop func()) {
	t.Helper()
	m = New(self, kv, nil, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return m.Start(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("members: %v", err)
		}
	})
	t.Cleanup(stop)
	return m, stop
}

func TestMembers_TakeOverFromLeavingMember(t *testing.T) {
	hub := streamstest.Hub(t)
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), subject.MembersBucket)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := startMember(t, "a", kv)
	b, stop := startMember(t, "b", kv)
	for _, m := range []*Members{a, b} {
		kit.Eventually(t, "both are seen", func() bool { return len(m.Live()) == 2 })
	}
	node := nodeOwnedBy(t, "b")
	if a.Owns(node) || !b.Owns(node) {
		t.Fatalf("%s: a %v, b %v", node, a.Owns(node), b.Owns(node))
	}
	changed := a.Changed()
	stop()
	began := time.Now()
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Fatal("the member that left is not missed")
	}
	if took := time.Since(began); took > memberExpiry {
		t.Errorf("noticed after %s, though it left by itself", took)
	}
	if !a.Owns(node) {
		t.Error("nobody took over")
	}
	t.Logf("taken over after %s", time.Since(began).Round(time.Millisecond))
}

// nodeOwnedBy finds a node that a member of {a, b} owns.
func nodeOwnedBy(t *testing.T, member string) string {
	t.Helper()
	for i := range 100 {
		if node := fmt.Sprint("edge-", i); ownerOf([]string{"a", "b"}, node) == member {
			return node
		}
	}
	t.Fatalf("%s owns nothing", member)
	return ""
}
