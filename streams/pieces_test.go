package streams_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

// large is an object whose payload has at least so many bytes on the wire: noise does not compress.
func large(name, version string, bytes int) wire.Message {
	noise := make([]byte, bytes)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(noise) // never fails
	m := apply(name, version)
	m.Object = fmt.Appendf(nil, `{"v":%q,"noise":%q}`, version, base64.StdEncoding.EncodeToString(noise))
	return m
}

// slowNode runs a node whose connection to the hub is a slow one.
func slowNode(t *testing.T, hub *server.Server, store streams.Store, link streams.Link, rate int) (*streamstest.Slow, *nats.Conn, *prometheus.Registry) {
	t.Helper()
	slow := streamstest.NewSlow(t, hub.Addr().String(), rate)
	nc, err := nats.Connect("nats://"+slow.Addr(), nats.CustomInboxPrefix(streams.InboxPrefix("edge.1")), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	reg := prometheus.NewRegistry()
	delivery, err := streams.NewDelivery("edge.1", nc, store, link, streams.NewMetrics(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	run(t, delivery.Start)
	return slow, nc, reg
}

// within waits longer than Eventually.
func within(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-ticker.C:
		}
	}
}

func version(object string) string {
	v, _, _ := strings.Cut(strings.TrimPrefix(object, `{"v":"`), `"`)
	return v
}

// A large object on a slow link keeps no small one waiting, comes in spite of a cut with what came before it, and costs the
// link little more than its size. Until it is there the cursor does not claim it.
func TestALargeObjectComesInPieces(t *testing.T) {
	const size, rate = 500 << 10, 100 << 10
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store, link := newMemory(), newLink()
	cloud.publish(t, apply("small", "0"))
	slow, nc, _ := slowNode(t, hub, store, link, rate)
	within(t, time.Minute, "the snapshot", func() bool { return version(store.get("small")) == "0" })
	before := slow.Down()

	began := time.Now()
	sequence := cloud.publish(t, large("huge", "1", size))
	cut := false
	for i := 1; store.get("huge") == ""; i++ {
		sent := time.Now()
		v := fmt.Sprint(i)
		cloud.publish(t, apply("small", v))
		within(t, time.Minute, "a small object", func() bool { return version(store.get("small")) == v })
		t.Logf("small object %d after %s", i, time.Since(sent).Round(time.Millisecond))
		store.mu.Lock()
		_, whole := store.objects[key("huge")]
		if claimed := store.cursor.Sequence >= sequence; claimed != whole {
			t.Errorf("the large object is there: %t, the cursor claims it: %t", whole, claimed)
		}
		store.mu.Unlock()
		if i == 1 && whole {
			t.Error("the small object came behind the large one")
		}
		if !cut && slow.Down()-before > size/2 {
			cut = true
			link.set(false)
			lost := nc.StatusChanged(nats.RECONNECTING)
			again := nc.StatusChanged(nats.CONNECTED)
			slow.Cut()
			<-lost
			<-again
			link.set(true)
		}
	}
	took, came := time.Since(began), slow.Down()-before
	t.Logf("the large object after %s, with %.2f times its bytes, cut %t", took.Round(time.Millisecond), float64(came)/size, cut)
	if want := large("huge", "1", size); store.get("huge") != string(want.Object) {
		t.Error("the object is not what was published")
	}
	if !cut {
		t.Error("the link was never cut, so nothing of that is shown")
	}
	if came > size*11/10+2*rate { // what is on its way at a cut comes again: a piece of at most 2 s
		t.Errorf("%d bytes came for an object of %d", came, size)
	}
	within(t, time.Minute, "the cursor", func() bool { return store.Cursor().Sequence > sequence })
}
