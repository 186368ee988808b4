package desired_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/internal/kubetest"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

// owners is an Ownership that a test can change. The zero value owns every node.
type owners struct {
	mu      sync.Mutex
	not     map[string]bool
	breaks  uint64
	away    bool
	refused int // how often Fresh has said no
	changed chan struct{}
}

func (o *owners) Term(node string) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.not[node] {
		return 0
	}
	return o.breaks + 1
}

func (o *owners) Fresh() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away {
		o.refused++
	}
	return !o.away
}

func (o *owners) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}

func (o *owners) set(node string, owned bool) {
	o.change(func() {
		if o.not == nil {
			o.not = map[string]bool{}
		}
		o.not[node] = !owned
		o.breaks++
	})
}

func (o *owners) change(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
	if o.changed != nil {
		close(o.changed)
	}
	o.changed = make(chan struct{})
}

// counted counts what is published of each object at each node.
type counted struct {
	*streams.Publisher

	mu    sync.Mutex
	count map[wire.Key]map[string]int
}

func (c *counted) Publish(ctx context.Context, m wire.Message, expectLast uint64) (uint64, error) {
	sequence, err := c.Publisher.Publish(ctx, m, expectLast)
	if err != nil {
		return sequence, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.count[m.Key] == nil {
		c.count[m.Key] = map[string]int{}
	}
	c.count[m.Key][m.Node]++
	return sequence, nil
}

// world is a cluster, a hub and a namespace of a test's own.
type world struct {
	testing.TB
	cluster   *kubetest.Cluster
	client    kubernetes.Interface
	ns        string
	hub       *server.Server
	js        jetstream.JetStream
	publisher *counted
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, cluster: shared.Cluster(t), hub: streamstest.Hub(t)}
	w.client, w.ns = w.cluster.Client(t), w.cluster.Namespace(t)
	nc := streamstest.Connect(t, w.hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	w.js = js
	publisher, err := streams.NewPublisher(nc, streams.NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	w.publisher = &counted{Publisher: publisher, count: map[wire.Key]map[string]int{}}
	return w
}

func (w *world) published(node string, key wire.Key) int {
	w.publisher.mu.Lock()
	defer w.publisher.mu.Unlock()
	return w.publisher.count[key][node]
}

// engine starts an engine with a cache of its own, as one cloudcore; it ends with the test.
func (w *world) engine(cfg desired.Config, owner desired.Ownership, agent string) *desired.Engine {
	w.Helper()
	return w.engineOver(w.publisher, cfg, owner, agent)
}

// engineOver is engine with a publisher of its own.
func (w *world) engineOver(publisher desired.Publisher, cfg desired.Config, owner desired.Ownership, agent string) *desired.Engine {
	w.Helper()
	return w.engineHearing(hearing(), publisher, cfg, owner, agent)
}

// engineHearing is engineOver with watches that may be held back.
func (w *world) engineHearing(ear *deaf, publisher desired.Publisher, cfg desired.Config, owner desired.Ownership, agent string) *desired.Engine {
	w.Helper()
	config := w.cluster.Limited(w, agent, desired.Rules())
	ear.over(config)
	objects, err := cache.New(config, desired.CacheOptions())
	if err != nil {
		w.Fatal(err)
	}
	log := zaptest.NewLogger(w, zaptest.WrapOptions(zap.IncreaseLevel(zap.WarnLevel)))
	engine, err := desired.New(cfg, objects, publisher, owner, log)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return engine.Start(gctx) })
	w.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			w.Errorf("engine: %v", err)
		}
	})
	select {
	case <-engine.Ready():
	case <-time.After(30 * time.Second):
		w.Fatal("engine not ready")
	}
	return engine
}

// node makes an edge node of the test's own and deletes it afterwards.
func (w *world) node(suffix string) string {
	w.Helper()
	name := w.ns + "-" + suffix
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{identity.EdgeLabel: ""}}}
	if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{})
	})
	return name
}

func (w *world) account(name string, pull ...string) {
	w.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, secret := range pull {
		account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	if _, err := w.client.CoreV1().ServiceAccounts(w.ns).Create(w.Context(), account, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) configMap(name, value string) *corev1.ConfigMap {
	w.Helper()
	cm, err := w.client.CoreV1().ConfigMaps(w.ns).Create(w.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return cm
}

func (w *world) setConfigMap(name, value string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"data":{"value":%q}}`, value)
	if _, err := w.client.CoreV1().ConfigMaps(w.ns).Patch(w.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *world) secret(name string) *corev1.Secret {
	w.Helper()
	s, err := w.client.CoreV1().Secrets(w.ns).Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"value": name},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// pod makes a pod that is bound to a node, of the account "default".
func (w *world) pod(name, node string, volumes ...corev1.VolumeSource) *corev1.Pod {
	w.Helper()
	off := false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "default", AutomountServiceAccountToken: &off,
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	for i, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v%d", i), VolumeSource: v})
	}
	pod, err := w.client.CoreV1().Pods(w.ns).Create(w.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return pod
}

func (w *world) deletePod(name string) {
	w.Helper()
	if err := w.client.CoreV1().Pods(w.ns).Delete(w.Context(), name, *metav1.NewDeleteOptions(0)); err != nil {
		w.Fatal(err)
	}
}

func mountConfigMap(name string) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func mountSecret(name string) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
}

// held is what the stream holds for a node.
func (w *world) held(node string) map[wire.Key]wire.Message {
	w.Helper()
	held, err := w.publisher.Held(w.Context(), node)
	if err != nil {
		w.Fatal(err)
	}
	return held
}

// lists names the live objects of a node, the node's own Node, the marker, RBAC and the cluster's Service left out.
func (w *world) lists(node string) []string {
	w.Helper()
	var found []string
	for key, m := range w.held(node) {
		switch {
		case m.Op == wire.Delete, key.Resource == "nodes", key == wire.SnapshotMarker(), key.Namespace == "default", key.Group == rbacv1.GroupName:
		default:
			found = append(found, strings.Replace(key.Human(), w.ns+"/", "", 1))
		}
	}
	slices.Sort(found)
	return found
}

func (w *world) eventuallyLists(node string, want ...string) {
	w.Helper()
	slices.Sort(want)
	kubetest.Eventually(w, 20*time.Second, func() error {
		if got := w.lists(node); !slices.Equal(got, want) {
			return fmt.Errorf("node has %q, want %q", got, want)
		}
		if m := w.held(node)[wire.SnapshotMarker()]; m.Op != wire.Apply {
			return errors.New("no marker")
		}
		return nil
	})
}

// object decodes what the stream holds of an object.
func (w *world) object(node string, key wire.Key, into any) {
	w.Helper()
	stream, err := w.js.Stream(w.Context(), streams.DesiredStream)
	if err != nil {
		w.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(w.Context(), streams.Subject(streams.Desired, node, key))
	if err != nil {
		w.Fatal(err)
	}
	if err := json.Unmarshal(m.Data, into); err != nil {
		w.Fatalf("%v in %q", err, m.Data)
	}
}

// eventually waits until the stream's last message of an object satisfies the condition.
func (w *world) eventually(node string, key wire.Key, what string, condition func(wire.Message) bool) wire.Message {
	w.Helper()
	var last wire.Message
	kubetest.Eventually(w, 20*time.Second, func() error {
		held := w.held(node)
		last = held[key]
		if condition(last) {
			return nil
		}
		return fmt.Errorf("%s of %s: %s; last %+v of %d", key.Human(), node, what, last, len(slices.Collect(maps.Keys(held))))
	})
	return last
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
