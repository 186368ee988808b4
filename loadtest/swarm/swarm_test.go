package swarm_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/loadtest/swarm"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/hubtest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

const (
	testToken = "abcdef.0123456789abcdef"
	cells     = 2
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testCloud is a real hub, with cloudcore's side of deliveries, and in place of Kubernetes and the registrar a few maps.
type testCloud struct {
	hub  *hubtest.Hub
	nc   *nats.Conn
	side streamstest.CloudSide
	// life is how long a key lasts.
	life time.Duration

	mu      sync.Mutex // guards all fields below
	nodes   map[string]string
	renewed int
	// losing is how many answers to an enrolment are still to be lost: the key is recorded, and the link ends before the answer.
	losing   int
	enrolled int                       // how many enrolments were answered or lost
	reports  map[wire.Key]wire.Message // the last of each object
	beats    map[string]wire.Heartbeat
}

func startCloud(t *testing.T, life time.Duration) *testCloud {
	t.Helper()
	c := &testCloud{
		hub: hubtest.Start(t, 1, cells), life: life, nodes: map[string]string{}, reports: map[wire.Key]wire.Message{}, beats: map[string]wire.Heartbeat{},
	}
	c.hub.AnswerCalloutBy(0, func(key string) string {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.nodes[key]
	})
	c.nc = c.hub.Connect(0, "cloudcore")
	js, err := jetstream.New(c.nc)
	kit.Must(t, err)
	layout := subject.Layout{Cells: cells}
	kit.Must(t, topology.Ensure(t.Context(), js, topology.HubTopology(1, layout)))
	c.side = streamstest.StartAnsweringCloud(t, c.nc, layout, false, map[string]call.Handler{
		identity.VerbEnrol: c.enrol, identity.VerbRenew: c.renew,
		subject.VerbScopes: func(context.Context, string, []byte) (any, error) { return wire.ScopesReply{Order: 1}, nil },
		subject.VerbSame:   func(context.Context, string, []byte) (any, error) { return wire.SameReply{}, nil },
	})
	streamstest.StartReports(t, c.nc, c.takeReport, nil)
	beats, err := call.NewHeartbeats(c.nc, func(_ context.Context, node string, beat wire.Heartbeat) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.beats[node] = beat
	}, metrics.New(nil), zap.NewNop())
	kit.Must(t, err)
	streamstest.StartPart(t, beats.Start)
	return c
}

func (c *testCloud) enrol(_ context.Context, caller string, request []byte) (any, error) {
	var r identity.EnrolRequest
	if err := json.Unmarshal(request, &r); err != nil {
		return nil, err
	}
	if r.Token != testToken || caller != r.Key {
		return identity.Enrolment{Reason: "wrong token"}, nil
	}
	c.mu.Lock()
	c.nodes[r.Key] = r.Node
	c.enrolled++
	lost := c.losing > 0
	c.losing--
	c.mu.Unlock()
	if lost {
		c.closeLinks()
	}
	return identity.Enrolment{Now: time.Now(), Expires: time.Now().Add(c.life)}, nil
}

// closeLinks closes all links.
func (c *testCloud) closeLinks() {
	leafs, err := c.hub.Server(0).Leafz(nil)
	if err != nil {
		return
	}
	for _, l := range leafs.Leafs {
		_ = c.hub.Server(0).DisconnectClientByID(l.ID) // it has closed meanwhile
	}
}

func (c *testCloud) renew(_ context.Context, caller string, request []byte) (any, error) {
	var r identity.RenewRequest
	if err := json.Unmarshal(request, &r); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[r.Current] != caller || r.Nonce == "" {
		return identity.Enrolment{Reason: "unknown key"}, nil
	}
	if r.Key == r.Current {
		return identity.Enrolment{Now: time.Now(), Expires: time.Now().Add(c.life)}, nil
	}
	delete(c.nodes, r.Current)
	c.nodes[r.Key] = caller
	c.renewed++
	return identity.Enrolment{Now: time.Now(), Expires: time.Now().Add(time.Hour)}, nil
}

// takeReport keeps a report, and creates a Node: it publishes it to the node that has reported it.
func (c *testCloud) takeReport(ctx context.Context, m wire.Message) error {
	c.mu.Lock()
	_, known := c.reports[m.Key]
	c.reports[m.Key] = m
	c.mu.Unlock()
	if known || m.Key.Resource != "nodes" {
		return nil
	}
	_, err := c.side.Publisher.Publish(ctx, wire.Message{
		Node: m.Node, Key: m.Key, Op: wire.Apply, UID: "uid-" + m.Node, Version: "1", ClusterEpoch: "e", Object: m.Object, Time: time.Now(),
	}, 0)
	return err
}

func (c *testCloud) report(key wire.Key) (wire.Message, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m, ok := c.reports[key]
	return m, ok
}

// startSwarm joins gateways and waits until they have joined.
func (c *testCloud) startSwarm(t *testing.T, log *zap.Logger, count int, applied func(string, wire.Message, time.Time)) *swarm.Swarm {
	t.Helper()
	text, err := os.ReadFile(c.hub.CA)
	kit.Must(t, err)
	block, _ := pem.Decode(text)
	ca, err := x509.ParseCertificate(block.Bytes)
	kit.Must(t, err)
	s, err := swarm.New(t.Context(), swarm.Config{
		Run: "r1", NodeName: func(i int) string { return fmt.Sprintf("lt-%d", i) }, Hubs: []string{"tls://" + c.hub.LeafAddr(0)}, Token: testToken,
		CAHashes: []string{hubca.KeyHash(ca)}, Version: "test", KubeletVersion: "v1.36.0", OnApplied: applied,
	}, log)
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return s.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		kit.Must(t, group.Wait())
	})
	kit.Must(t, s.Join(t.Context(), 0, count, 1000, nil))
	kit.Within(t, 2*time.Minute, "all have joined", func() bool { return s.Joined() == count })
	return s
}

// publish publishes the next version of an object to a node.
func (c *testCloud) publish(t *testing.T, node string, key wire.Key, op wire.Operation, uid, version, object string) {
	t.Helper()
	m := wire.Message{Node: node, Key: key, Op: op, UID: uid, Version: version, ClusterEpoch: "e", Time: time.Now()}
	if op == wire.Apply {
		m.Object = []byte(object)
	}
	c.side.PublishNext(t, m)
}

// Gateways join with a token, register a Node, run their pods and end them, follow changes, and come back after a cut with what they missed.
func TestSwarm_GatewaysLive(t *testing.T) {
	c := startCloud(t, time.Hour)
	var mu sync.Mutex
	applied := map[string]int{}
	s := c.startSwarm(t, zaptest.NewLogger(t), 5, func(node string, m wire.Message, _ time.Time) {
		mu.Lock()
		defer mu.Unlock()
		applied[node+" "+m.Key.Human()+" "+m.Version]++
	})
	g := s.Gateways()[3]
	m, _ := c.report(wire.Key{Resource: "nodes", Name: "lt-3"})
	var node corev1.Node
	kit.Must(t, json.Unmarshal(m.Object, &node))
	if node.Labels[names.LabelLoadtestRun] != "r1" || len(node.Spec.Taints) != 1 || len(node.Status.Conditions) != 4 {
		t.Errorf("registers %+v", node)
	}
	pod := wire.Key{Resource: "pods", Namespace: "ns", Name: "web"}
	c.publish(t, "lt-3", pod, wire.Apply, "u1", "1", `{"metadata":{"name":"web","namespace":"ns","uid":"u1"},"spec":{"nodeName":"lt-3","containers":[{"name":"c"}]}}`)
	kit.Eventually(t, "the pod is reported running", func() bool { m, ok := c.report(pod); return ok && m.Op == wire.Apply && m.UID == "u1" })
	page := wire.Key{Resource: "configmaps", Namespace: "ns", Name: "page"}
	g.SetCut(true)
	kit.Eventually(t, "the link is cut", func() bool { return !g.Linked() })
	c.publish(t, "lt-3", page, wire.Apply, "u2", "7", `{"data":{}}`)
	g.SetCut(false)
	kit.Eventually(t, "what was missed is there", func() bool { o, ok := g.Store().Object(page); return ok && o.Version == "7" })
	c.publish(t, "lt-3", pod, wire.Apply, "u1", "2",
		`{"metadata":{"name":"web","namespace":"ns","uid":"u1","deletionTimestamp":"2026-01-01T00:00:00Z"},"spec":{"nodeName":"lt-3"}}`)
	kit.Eventually(t, "the end of the pod is reported", func() bool { m, _ := c.report(pod); return m.Op == wire.Delete && m.UID == "u1" })
	c.publish(t, "lt-3", pod, wire.Delete, "u1", "3", "")
	kit.Eventually(t, "a beat tells the cursor and what is held", func() bool {
		cursor, inventory := g.Store().Inventory()
		c.mu.Lock()
		defer c.mu.Unlock()
		beat := c.beats["lt-3"]
		return inventory.Objects == 2 && beat.Cursor == cursor && beat.Inventory != nil && *beat.Inventory == inventory
	})
	mu.Lock()
	defer mu.Unlock()
	if n := applied["lt-3 configmaps ns/page 7"]; n != 1 {
		t.Errorf("the change was told %d times", n)
	}
	if n, faults := s.Faults(); n != 0 {
		t.Errorf("%d faults: %v", n, errors.Join(faults...))
	}
}

// A gateway whose enrolment was recorded and whose answer was lost is in its own cell from its next link on: it asks for renewal there, as
// edgecore does, and joins.
func TestSwarm_LostAnswerOfEnrolment(t *testing.T) {
	c := startCloud(t, time.Hour)
	c.losing = 1
	s := c.startSwarm(t, zaptest.NewLogger(t), 1, nil)
	if n, faults := s.Faults(); n != 0 {
		t.Errorf("%d faults: %v", n, errors.Join(faults...))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.enrolled != 1 {
		t.Errorf("enrolled %d times: an enrolment that was recorded is asked for again", c.enrolled)
	}
}

// A key is renewed in time; the hub's link with the key before it is dialled again.
func TestSwarm_RenewsKeys(t *testing.T) {
	c := startCloud(t, 5*time.Second)
	s := c.startSwarm(t, zaptest.NewLogger(t), 1, nil)
	first := s.Gateways()[0].Key()
	kit.Eventually(t, "a renewal", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.renewed == 1
	})
	kit.Eventually(t, "a link with the new key", func() bool { g := s.Gateways()[0]; return g.Key() != first && g.Linked() })
}

// A gateway that the cloud refuses is a fault that says why, and holds up no other.
func TestSwarm_RefusedToken(t *testing.T) {
	c := startCloud(t, time.Hour)
	text, err := os.ReadFile(c.hub.CA)
	kit.Must(t, err)
	block, _ := pem.Decode(text)
	ca, err := x509.ParseCertificate(block.Bytes)
	kit.Must(t, err)
	cfg := swarm.Config{
		Run: "r1", NodeName: func(i int) string { return fmt.Sprintf("lt-%d", i) }, Hubs: []string{"tls://" + c.hub.LeafAddr(0)}, Token: "wrong0.0123456789abcdef",
		CAHashes: []string{hubca.KeyHash(ca)},
	}
	s, err := swarm.New(t.Context(), cfg, zaptest.NewLogger(t))
	kit.Must(t, err)
	streamstest.StartPart(t, s.Start)
	kit.Must(t, s.Join(t.Context(), 0, 1, 1000, nil))
	kit.Eventually(t, "the refusal is known", func() bool { n, faults := s.Faults(); return n == 1 && errorsAsRefusal(faults[0]) })
	cfg.CAHashes = []string{"sha256:" + "00"}
	if _, err := swarm.New(t.Context(), cfg, zaptest.NewLogger(t)); err == nil {
		t.Error("a hub with another CA is believed")
	}
}
