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

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// fakeOwnership is an Ownership that a test can change. The zero value owns every node.
type fakeOwnership struct {
	mu           sync.Mutex
	notOwned     map[string]bool
	termBreaks   uint64
	leaseExpired bool
	refusals     int // how often LeaseValid has returned false
	changed      chan struct{}
}

func (o *fakeOwnership) Owns(node string) bool { return o.Term(node) != 0 }

func (o *fakeOwnership) Term(node string) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.notOwned[node] {
		return 0
	}
	return o.termBreaks + 1
}

func (o *fakeOwnership) LeaseValid() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.leaseExpired {
		o.refusals++
	}
	return !o.leaseExpired
}

func (o *fakeOwnership) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed == nil {
		o.changed = make(chan struct{})
	}
	return o.changed
}

func (o *fakeOwnership) setOwned(node string, owned bool) {
	o.changeAndNotify(func() {
		if o.notOwned == nil {
			o.notOwned = map[string]bool{}
		}
		o.notOwned[node] = !owned
		o.termBreaks++
	})
}

func (o *fakeOwnership) changeAndNotify(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
	if o.changed != nil {
		close(o.changed)
	}
	o.changed = make(chan struct{})
}

// counted counts the publications of each object at each node.
type counted struct {
	*publish.Publisher

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

// engineEnv is a cluster, a hub and a namespace of a test's own.
type engineEnv struct {
	testing.TB
	cluster   *kubetest.Cluster
	client    kubernetes.Interface
	ns        string
	hub       *server.Server
	js        jetstream.JetStream
	publisher *counted
}

func newEngineEnv(t testing.TB) *engineEnv {
	t.Helper()
	w := &engineEnv{TB: t, cluster: shared.Cluster(t), hub: streamstest.Hub(t)}
	w.client, w.ns = w.cluster.Client(t), w.cluster.Namespace(t)
	nc := streamstest.Connect(t, w.hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	w.js = js
	publisher, err := publish.NewPublisher(nc, subject.Layout{}, metrics.New(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	w.publisher = &counted{Publisher: publisher, count: map[wire.Key]map[string]int{}}
	return w
}

func (w *engineEnv) publishCount(node string, key wire.Key) int {
	w.publisher.mu.Lock()
	defer w.publisher.mu.Unlock()
	return w.publisher.count[key][node]
}

// startEngine starts an engine with a cache of its own, as one cloudcore; it ends with the test.
func (w *engineEnv) startEngine(cfg desired.Config, owner desired.Ownership, agent string) *desired.Engine {
	w.Helper()
	return w.startEngineWith(w.publisher, cfg, owner, agent)
}

// startEngineWith is startEngine with a publisher of its own.
func (w *engineEnv) startEngineWith(publisher desired.Publisher, cfg desired.Config, owner desired.Ownership, agent string) *desired.Engine {
	w.Helper()
	return w.startEngineWatching(newWatchBlocker(), publisher, cfg, owner, agent)
}

// startEngineWatching is startEngineWith with watches that the test can block.
func (w *engineEnv) startEngineWatching(ear *watchBlocker, publisher desired.Publisher, cfg desired.Config, owner desired.Ownership, agent string) *desired.Engine {
	w.Helper()
	config := w.cluster.ConfigWithRules(w, agent, kinds.Rules())
	ear.wrapConfig(config)
	objects, err := podcache.New(config)
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

// createNode creates an edge node of the test's own and deletes it afterwards.
func (w *engineEnv) createNode(suffix string) string {
	w.Helper()
	name := w.ns + "-" + suffix
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.LabelEdge: ""}}}
	if _, err := w.client.CoreV1().Nodes().Create(w.Context(), node, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{})
	})
	return name
}

func (w *engineEnv) createAccount(name string, pull ...string) {
	w.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, secret := range pull {
		account.ImagePullSecrets = append(account.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	if _, err := w.client.CoreV1().ServiceAccounts(w.ns).Create(w.Context(), account, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *engineEnv) createConfigMap(name, value string) *corev1.ConfigMap {
	w.Helper()
	cm, err := w.client.CoreV1().ConfigMaps(w.ns).Create(w.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return cm
}

func (w *engineEnv) setConfigMap(name, value string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"data":{"value":%q}}`, value)
	if _, err := w.client.CoreV1().ConfigMaps(w.ns).Patch(w.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *engineEnv) createSecret(name string) *corev1.Secret {
	w.Helper()
	s, err := w.client.CoreV1().Secrets(w.ns).Create(w.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{"value": name},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return s
}

// createPod creates a pod that is bound to a node, with the service account "default".
func (w *engineEnv) createPod(name, node string, volumes ...corev1.VolumeSource) *corev1.Pod {
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

func (w *engineEnv) deletePod(name string) {
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

// heldMessages returns what the stream holds for a node.
func (w *engineEnv) heldMessages(node string) map[wire.Key]wire.Message {
	w.Helper()
	held, err := w.publisher.Held(w.Context(), node)
	if err != nil {
		w.Fatal(err)
	}
	return held
}

// liveObjects returns the names of a node's live objects, without its own Node, markers, RBAC and the cluster's Service.
func (w *engineEnv) liveObjects(node string) []string {
	w.Helper()
	var found []string
	for key, m := range w.heldMessages(node) {
		switch {
		case m.Op == wire.Delete, key.Resource == "nodes", key.Group == "frond.io", key.Namespace == "default", key.Group == rbacv1.GroupName:
		case (key.Resource == "services" || key.Resource == "endpointslices") && key.Namespace != w.ns: // another test's
		default:
			found = append(found, strings.Replace(key.Human(), w.ns+"/", "", 1))
		}
	}
	slices.Sort(found)
	return found
}

func (w *engineEnv) eventuallyHasObjects(node string, want ...string) {
	w.Helper()
	slices.Sort(want)
	kubetest.Eventually(w, 20*time.Second, func() error {
		if got := w.liveObjects(node); !slices.Equal(got, want) {
			return fmt.Errorf("node has %q, want %q", got, want)
		}
		if m := w.heldMessages(node)[wire.SnapshotMarker()]; m.Op != wire.Apply {
			return errors.New("no marker")
		}
		return nil
	})
}

// decodeObject decodes an object that the stream holds.
func (w *engineEnv) decodeObject(node string, key wire.Key, into any) {
	w.Helper()
	stream, err := w.js.Stream(w.Context(), subject.DesiredStream)
	if err != nil {
		w.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(w.Context(), subject.Of(subject.Desired, node, key))
	if err != nil {
		w.Fatal(err)
	}
	if err := json.Unmarshal(m.Data, into); err != nil {
		w.Fatalf("%v in %q", err, m.Data)
	}
}

// eventuallyMessage waits until the stream's last message of an object satisfies the condition.
func (w *engineEnv) eventuallyMessage(node string, key wire.Key, what string, condition func(wire.Message) bool) wire.Message {
	w.Helper()
	var last wire.Message
	kubetest.Eventually(w, 20*time.Second, func() error {
		held := w.heldMessages(node)
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
