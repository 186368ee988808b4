package callout

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/cloud/identity/links"
	"github.com/frond-edge/frond/test/kit"
)

// laggingRecords are those of a replica that learns of a node only after it was asked about it.
type laggingRecords struct {
	memoryRecords
	// asked closes when the node was looked up once.
	asked func()
	// patient records are awaited however long it takes, so that no test depends on the speed of the machine.
	patient bool

	mu      sync.Mutex
	record  *identity.Record // guarded by mu
	changed chan struct{}    // closed when the record is there
}

func (l *laggingRecords) Lookup(string) *identity.Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked()
	return l.record
}

func (*laggingRecords) Synced() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (l *laggingRecords) AwaitKey(ctx context.Context, _, _ string) {
	if l.patient {
		<-l.changed
		return
	}
	select {
	case <-ctx.Done():
	case <-l.changed:
	}
}

func (l *laggingRecords) learn(r *identity.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.record = r
	close(l.changed)
}

type silentAnnouncer struct{}

func (silentAnnouncer) Announce(links.Admission) error { return nil }

// connectServer starts a server and returns a client.
func connectServer(t *testing.T) *nats.Conn {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoLog: true, NoSigs: true})
	kit.Must(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("server not ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	kit.Must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// A gateway enrols at one replica, and the hub asks another one about its link, which has not seen the record yet: it waits for the record
// instead of refusing a gateway that would then pause for seconds. A stranger is refused all the same.
func TestCallout_WaitsForRecordOfAnotherReplica(t *testing.T) {
	for name, known := range map[string]bool{"just enrolled": true, "stranger": false} {
		t.Run(name, func(t *testing.T) {
			issuer, hub, key := newKeyPair(t, nkeys.PrefixByteAccount), newKeyPair(t, nkeys.PrefixByteServer), newKeyPair(t, nkeys.PrefixByteUser)
			public, err := key.PublicKey()
			kit.Must(t, err)
			asked := make(chan struct{})
			records := &laggingRecords{asked: sync.OnceFunc(func() { close(asked) }), changed: make(chan struct{}), patient: known}
			nc := connectServer(t)
			c, err := New(nc, issuer, identity.Policy{Cells: 4}, records, nil, silentAnnouncer{}, nil, identity.NewMetrics(nil), NewMetrics(nil), zaptest.NewLogger(t))
			kit.Must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			var running errgroup.Group
			running.Go(func() error { return c.Start(ctx) })
			defer func() {
				cancel()
				kit.Must(t, running.Wait())
			}()
			replies := make(chan *nats.Msg, 1024)
			_, err = nc.ChanSubscribe("reply", replies)
			kit.Must(t, err)
			request := []byte(newAuthRequest(t, hub, key, c.issuerKey, nil))
			kit.Eventually(t, "the replica is asked", func() bool {
				kit.Must(t, nc.PublishRequest(calloutSubject, "reply", request)) // nobody hears it before the subscription
				select {
				case <-asked:
					return true
				default:
					return false
				}
			})
			if known {
				records.learn(&identity.Record{Node: "gw-1", Key: public, Expires: time.Now().Add(time.Hour)})
			}
			reply := <-replies
			for len(reply.Data) == 0 { // before the subscription
				reply = <-replies
			}
			answer, err := jwt.DecodeAuthorizationResponseClaims(string(reply.Data))
			kit.Must(t, err)
			if admitted := answer.Error == "" && answer.Jwt != ""; admitted != known {
				t.Errorf("admitted %v, error %q", admitted, answer.Error)
			}
		})
	}
}

// Strangers, who can make any number of keys, take no more than a bounded number of waits; the next is refused at once, as are those whose
// refusal no record would change.
func TestRecordWaits_AreBounded(t *testing.T) {
	records := &laggingRecords{asked: func() {}, changed: make(chan struct{}), patient: true}
	var running errgroup.Group
	queue, ctx := make(chan queuedRequest, maxRecordWaits), t.Context()
	w := newRecordWaits(records, NewMetrics(nil), queue, &running)
	stranger := attempt{credential: api.Credential{Node: "gw-1", Key: "K"}}
	guest := attempt{credential: api.Credential{Node: "gw-1", Key: "K", Token: "t"}}
	for name, held := range map[string]bool{
		"with a token": w.hold(ctx, queuedRequest{}, guest, identity.ReasonUnknown), "again": w.hold(ctx, queuedRequest{waited: true}, stranger, identity.ReasonUnknown),
		"revoked": w.hold(ctx, queuedRequest{}, stranger, identity.ReasonRevokedKey),
	} {
		if held {
			t.Errorf("%s: waits", name)
		}
	}
	for i := range maxRecordWaits {
		if !w.hold(ctx, queuedRequest{}, stranger, identity.ReasonUnknown) {
			t.Fatalf("wait %d is refused", i)
		}
	}
	if w.hold(ctx, queuedRequest{}, stranger, identity.ReasonOtherKey) {
		t.Error("one more waits")
	}
	records.learn(nil)
	kit.Must(t, running.Wait())
	if len(queue) != maxRecordWaits {
		t.Errorf("%d requests are evaluated again", len(queue))
	}
}
