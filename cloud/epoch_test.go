package cloud

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/epoch"
	"github.com/frond-edge/frond/cloud/kube"
	"github.com/frond-edge/frond/cloud/kubecalls"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/holds"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// clusterFixture is a cluster with one edge node, and a hub.
type clusterFixture struct {
	testing.TB
	cluster *kubetest.Cluster
	kube    kubernetes.Interface
	hub     *server.Server
	ns      string
}

func (s *clusterFixture) openTracker() *epoch.Tracker {
	s.Helper()
	js, err := jetstream.New(streamstest.Connect(s, s.hub))
	if err != nil {
		s.Fatal(err)
	}
	kv, err := js.KeyValue(s.Context(), subject.RegistryBucket)
	if err != nil {
		s.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(s.cluster.ConfigWithRules(s, "frond-history-test", epoch.Rules()))
	if err != nil {
		s.Fatal(err)
	}
	h, err := epoch.Open(s.Context(), 200*time.Millisecond, client, kv, func() bool { return true }, zaptest.NewLogger(s))
	if err != nil {
		s.Fatal(err)
	}
	return h
}

// startPublisher runs the publishing parts, with an empty memory as after the start of a process; failed receives the
// first error of the parts.
func (s *clusterFixture) startPublisher() (history *epoch.Tracker, failed <-chan error, stop func()) {
	s.Helper()
	history = s.openTracker()
	objects, err := podcache.New(s.cluster.Config())
	if err != nil {
		s.Fatal(err)
	}
	log := zaptest.NewLogger(s, zaptest.WrapOptions(zap.IncreaseLevel(zap.InfoLevel)))
	publisher, err := publish.NewPublisher(streamstest.Connect(s, s.hub), subject.Layout{}, metrics.New(nil))
	if err != nil {
		s.Fatal(err)
	}
	parsed, err := config.ParseCloudCore([]byte("hub: {urls: ['nats://h:4222'], nkeyFile: a, caFile: b, certFile: c, keyFile: d}"), "test")
	if err != nil {
		s.Fatal(err)
	}
	teller := holds.New(s.kube, objects, func(string) bool { return true }, log)
	meta, err := metadata.NewForConfig(s.cluster.Config())
	if err != nil {
		s.Fatal(err)
	}
	cfg := desiredConfig(parsed, history, teller, kubecalls.NewWithheldEvents(func(string, string, string) {}))
	cfg.Metrics, cfg.Probe = prometheus.NewRegistry(), kube.NewProbe(meta)
	engine, err := desired.New(cfg, objects, publisher, ownsAll{}, log)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	g, gctx := errgroup.WithContext(ctx)
	for _, start := range []func(context.Context) error{history.Start, objects.Start, teller.Start, engine.Start} {
		g.Go(func() error { return start(gctx) })
	}
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- g.Wait()
	}()
	stop = func() {
		cancel()
		<-done
	}
	s.Cleanup(stop)
	return history, ended, stop
}

// ownsAll is an Ownership that owns every node.
type ownsAll struct{}

func (ownsAll) Owns(string) bool         { return true }
func (ownsAll) Term(string) uint64       { return 1 }
func (ownsAll) LeaseValid() bool         { return true }
func (ownsAll) Changed() <-chan struct{} { return nil }

func (s *clusterFixture) createPod(name string) { s.createPodOn(name, "edge") }

func (s *clusterFixture) createPodOn(name, node string) {
	s.Helper()
	_, err := s.kube.CoreV1().Pods(s.ns).Create(s.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

// waitForPods waits until the stream holds exactly these pods for the node, all of one epoch or of none in particular.
func (s *clusterFixture) waitForPods(want map[string]string) {
	s.Helper()
	publisher, err := publish.NewPublisher(streamstest.Connect(s, s.hub), subject.Layout{}, metrics.New(nil))
	if err != nil {
		s.Fatal(err)
	}
	kit.Succeeds(s, time.Minute, func() error {
		held, err := publisher.Held(s.Context(), "edge")
		if err != nil {
			return err
		}
		got := map[string]string{}
		for key, m := range held {
			if key.Resource == "pods" && m.Op == wire.Apply {
				got[key.Name] = m.ClusterEpoch
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// createNodes creates the namespace, its account and edge nodes.
func (s *clusterFixture) createNodes(nodes ...string) {
	s.Helper()
	core := s.kube.CoreV1()
	if _, err := core.Namespaces().Create(s.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.ns}}, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := core.ServiceAccounts(s.ns).Create(s.Context(), account, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	for _, name := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.LabelEdge: ""}}}
		if _, err := core.Nodes().Create(s.Context(), node, metav1.CreateOptions{}); err != nil {
			s.Fatal(err)
		}
	}
}

// An etcd is restored to an older copy: what the API then holds is published again with another epoch; the pods that it
// lost are kept at the node until an operator confirms.
func TestTracker_RestoredEtcdIsRepublished(t *testing.T) {
	s := &clusterFixture{TB: t, cluster: sharedCluster.Cluster(t), hub: streamstest.Hub(t)}
	s.kube = s.cluster.Client(t)
	s.ns = "restored"
	s.createNodes("edge")
	for i := range 4 {
		s.createPod(fmt.Sprint("old", i))
	}
	first, _, stop := s.startPublisher()
	before := first.Epoch()
	s.waitForPods(map[string]string{"old0": before, "old1": before, "old2": before, "old3": before})
	stop()
	snapshot := s.cluster.Snapshot(t)

	same, failed, stop := s.startPublisher()
	if same.Epoch() != before || !same.Restored().IsZero() {
		t.Fatalf("a control plane that was down for a while: epoch %s, before %s", same.Epoch(), before)
	}
	s.createPod("new")
	if err := s.kube.CoreV1().Pods(s.ns).Delete(t.Context(), "old0", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	s.waitForPods(map[string]string{"old1": before, "old2": before, "old3": before, "new": before})

	s.cluster.Restore(t, snapshot)
	if err := kit.Receive(t, "the restore is noticed", failed); !errors.Is(err, epoch.ErrRestored) {
		t.Fatalf("after the restore the replica ended with %v", err)
	}
	stop()
	// The replica that did not know of the restore yet has removed nothing from the node.
	s.waitForPods(map[string]string{"old1": before, "old2": before, "old3": before, "new": before})

	restored, _, _ := s.startPublisher()
	next := before + "/1"
	if restored.Epoch() != next || restored.Restored().IsZero() {
		t.Fatalf("epoch %s since %v, want %s", restored.Epoch(), restored.Restored(), next)
	}
	s.waitForPods(map[string]string{"old0": next, "old1": next, "old2": next, "old3": next, "new": before})
	var hold wire.Hold
	kit.Succeeds(t, time.Minute, func() error {
		node, err := s.kube.CoreV1().Nodes().Get(t.Context(), "edge", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if hold, _ = wire.ParseHold(node.Annotations); hold.Reason != wire.HoldRestored || hold.Missing != 1 {
			return fmt.Errorf("annotations %v", node.Annotations)
		}
		return nil
	})
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationConfirmDeletions, hold.Token)
	if _, err := s.kube.CoreV1().Nodes().Patch(t.Context(), "edge", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.waitForPods(map[string]string{"old0": next, "old1": next, "old2": next, "old3": next})
}
