package localapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/merge"
	"github.com/frond-edge/frond/leaf/store"
)

const gatewayNode = "edge-1"

// gateway is a local API over a real store in a real embedded server, with a fake cloud.
type gateway struct {
	t     testing.TB
	dir   string
	store *store.Store
	api   *localapi.Server
	cloud *fakeCloud
	sent  *fakeOutbox
	seq   uint64
	stop  func()
}

type option func(*localapi.Config)

// newGateway starts a gateway in a new folder; attached: it has been in sync with the cloud.
func newGateway(tb testing.TB, attached bool, options ...option) *gateway {
	tb.Helper()
	g := &gateway{t: tb, dir: tb.TempDir(), cloud: &fakeCloud{}, sent: &fakeOutbox{}}
	g.start(options...)
	if attached {
		g.attachStore()
	}
	return g
}

func (g *gateway) start(options ...option) {
	g.t.Helper()
	ns, err := server.NewServer(&server.Options{
		ServerName: gatewayNode, JetStream: true, StoreDir: g.dir, DontListen: true, NoSigs: true, NoLog: true, JetStreamMaxStore: 1 << 30,
		JetStreamMaxMemory: 8 << 20,
	})
	if err != nil {
		g.t.Fatal(err)
	}
	ns.Start()
	conn, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		g.t.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.t.Context()))
	log := zaptest.NewLogger(g.t, zaptest.Level(zap.WarnLevel))
	octx, opened := context.WithTimeout(ctx, time.Minute) // without a deadline each request has 5 s, which a busy disk may exceed
	defer opened()
	if g.store, err = store.Open(octx, js, store.Config{Merge: merge.Desired, HighWaterFile: filepath.Join(g.dir, "store.mark")}, log); err != nil {
		g.t.Fatal(err)
	}
	cfg := localapi.Config{Node: gatewayNode}
	for _, o := range options {
		o(&cfg)
	}
	if g.api, err = localapi.New(cfg, g.store, g.cloud, g.sent, log); err != nil {
		g.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.api.Start(ctx) }()
	var once sync.Once
	g.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				g.t.Errorf("Start: %v", err)
			}
			conn.Close()
			ns.Shutdown()
			ns.WaitForShutdown()
		})
	}
	g.t.Cleanup(func() { g.stop() })
	select {
	case <-g.api.Ready():
	case err := <-done:
		g.t.Fatalf("Start: %v", err)
	}
}

func (g *gateway) attachStore() {
	g.t.Helper()
	if err := g.store.Replace(g.t.Context(), nil, "stream-1", 1); err != nil {
		g.t.Fatal(err)
	}
	g.seq = 1
}

// deliverObjects simulates a delivery from the hub.
func (g *gateway) deliverObjects(objects ...metav1.Object) {
	g.t.Helper()
	var messages []wire.Message
	for _, o := range objects {
		g.seq++
		messages = append(messages, newMessage(g.t, o, g.seq))
	}
	if err := g.store.Apply(g.t.Context(), messages, g.seq); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) deliverTombstone(o metav1.Object) {
	g.t.Helper()
	g.seq++
	m := newMessage(g.t, o, g.seq)
	m.Op, m.Object = wire.Delete, nil
	if err := g.store.Apply(g.t.Context(), []wire.Message{m}, g.seq); err != nil {
		g.t.Fatal(err)
	}
}

func newMessage(tb testing.TB, o metav1.Object, seq uint64) wire.Message {
	tb.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	return wire.Message{
		Node: gatewayNode, Key: keyOf(tb, o), Op: wire.Apply, UID: string(o.GetUID()), Version: o.GetResourceVersion(),
		ClusterEpoch: "cluster-1", Sequence: seq, Object: data,
	}
}

func keyOf(tb testing.TB, o metav1.Object) wire.Key {
	tb.Helper()
	key := wire.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
	switch o.(type) {
	case *corev1.Pod:
		key.Resource = "pods"
	case *corev1.Node:
		key.Resource = "nodes"
	case *corev1.ConfigMap:
		key.Resource = "configmaps"
	case *corev1.Secret:
		key.Resource = "secrets"
	case *corev1.Service:
		key.Resource = "services"
	default:
		tb.Fatalf("no key for %T", o)
	}
	return key
}

// newClient returns a typed in-memory client; protobuf selects the encoding that a kubelet uses.
func (g *gateway) newClient(protobuf bool) kubernetes.Interface {
	g.t.Helper()
	cfg := g.api.ClientConfig()
	if protobuf {
		cfg.ContentType = "application/vnd.kubernetes.protobuf"
		cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	}
	return clientFor(g.t, cfg)
}

func clientFor(tb testing.TB, cfg *rest.Config) kubernetes.Interface {
	tb.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// fakeCloud answers calls; the zero cloud is offline.
type fakeCloud struct {
	mu       sync.Mutex
	handler  http.HandlerFunc
	requests []wire.KubeRequest
}

func (c *fakeCloud) goOnline(h http.HandlerFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handler = h
}

func (c *fakeCloud) goOffline() { c.goOnline(nil) }

func (c *fakeCloud) requestsSeen() []wire.KubeRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// fakeOutbox records reports; fail makes it refuse them.
type fakeOutbox struct {
	mu      sync.Mutex
	reports []wire.Message
	events  []wire.Message
	fail    error
}

func (o *fakeOutbox) Report(ctx context.Context, m wire.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.Is(o.fail, errHang) {
		<-ctx.Done()
		return ctx.Err()
	}
	if o.fail != nil {
		return o.fail
	}
	o.reports = append(o.reports, m)
	return nil
}

func (o *fakeOutbox) ReportEvent(_ context.Context, m wire.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, m)
	return nil
}

func (o *fakeOutbox) allReports() []wire.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.reports)
}

func (o *fakeOutbox) allEvents() []wire.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

var errHang = errors.New("hang")

// hangReports makes Report block until its context ends.
func (o *fakeOutbox) hangReports() { o.refuseReports(errHang) }

func (o *fakeOutbox) refuseReports(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fail = err
}

func newPod(name, uid, version string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(uid), ResourceVersion: version, Labels: map[string]string{"app": name},
			CreationTimestamp: metav1.NewTime(time.Now().Add(-5 * time.Minute).Truncate(time.Second)),
		},
		Spec:   corev1.PodSpec{NodeName: gatewayNode, Containers: []corev1.Container{{Name: "main", Image: "busybox"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort},
	}
}

func newConfigMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7"},
		Data:       map[string]string{"key": value},
	}
}
