package inspect_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

var sharedCluster kubetest.Shared

func TestMain(m *testing.M) { sharedCluster.Verify(m) }

// twoMembers implements Members for the tests.
type twoMembers struct{}

func (twoMembers) Live() []string           { return []string{"one", "two"} }
func (twoMembers) Owner(node string) string { return "owner of " + node }

// inspectFixture is one node, named after a namespace of its own, on a real hub.
type inspectFixture struct {
	*testing.T
	node      string
	view      *inspect.View
	publisher *publish.Publisher
	attacher  *publish.Attacher
	hub       *publish.Inspector
	js        jetstream.JetStream
}

func newInspectFixture(t *testing.T) *inspectFixture {
	t.Helper()
	cluster := sharedCluster.Cluster(t)
	w := &inspectFixture{T: t, node: cluster.Namespace(t)}
	objects, err := client.New(cluster.Config(), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	nc := streamstest.Connect(t, streamstest.Hub(t))
	if w.hub, err = publish.NewInspector(nc, subject.Layout{}); err != nil {
		t.Fatal(err)
	}
	w.view = inspect.NewView("one", objects, twoMembers{}, w.hub, func(n *corev1.Node) (value, group string) { return n.Annotations[names.AnnotationAutonomy], "north" })
	if w.publisher, err = publish.NewPublisher(nc, subject.Layout{}, metrics.New(nil)); err != nil {
		t.Fatal(err)
	}
	if w.attacher, err = publish.NewAttacher(publish.AttacherConfig{}, nc, subject.Layout{}, metrics.New(nil), zaptest.NewLogger(t)); err != nil {
		t.Fatal(err)
	}
	if w.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node, Labels: map[string]string{"node-role.kubernetes.io/edge": ""}}}
	if err := objects.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cluster.Client(t).CoreV1().Nodes().Delete(ctxOf(t), w.node, metav1.DeleteOptions{})
	})
	return w
}

func configMapKey(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: "default", Name: name}
}

// publishVersion stores a version of an object, or its tombstone, and returns the sequence.
func (w *inspectFixture) publishVersion(key wire.Key, op wire.Operation, version string, last uint64) uint64 {
	w.Helper()
	m := wire.Message{Node: w.node, Key: key, Op: op, UID: "uid", Version: version, Acked: "before", Time: time.Now()}
	if op == wire.Apply {
		m.Object = []byte("{}")
	}
	sequence, err := w.publisher.Publish(w.Context(), m, last)
	if err != nil {
		w.Fatal(err)
	}
	return sequence
}

func (w *inspectFixture) streamEpoch() string {
	w.Helper()
	epochOf, err := w.hub.Epochs(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return epochOf(w.node)
}

// sendHeartbeat reports the node's cursor.
func (w *inspectFixture) sendHeartbeat(sequence uint64) {
	w.view.RecordHeartbeat(w.node, wire.Heartbeat{
		Cursor: wire.Cursor{StoreEpoch: "s", StreamEpoch: w.streamEpoch(), Sequence: sequence}, Healthy: true, Outbox: 7, Version: "v1",
	})
}

func (w *inspectFixture) readSync() api.Sync {
	w.Helper()
	answer, err := w.view.Sync(w.Context(), w.node)
	if err != nil {
		w.Fatal(err)
	}
	return answer
}

// waitProgress waits until desired, delivered and applied have these values: a consumer learns of a message some time
// after it is stored.
func (w *inspectFixture) waitProgress(what string, desired int, delivered, applied *int) {
	w.Helper()
	kit.Succeeds(w, 30*time.Second, func() error {
		p := w.readSync().Node.Progress
		if p == nil {
			return fmt.Errorf("%s: no progress", what)
		}
		if diff := cmp.Diff([]any{desired, delivered, applied}, []any{p.Desired, p.Delivered, p.Applied}); diff != "" {
			return fmt.Errorf("%s: desired, delivered, applied (-want +got):\n%s", what, diff)
		}
		return nil
	})
}

// attachNode makes the consumer start after the node's cursor.
func (w *inspectFixture) attachNode(sequence uint64) jetstream.Consumer {
	w.Helper()
	request, err := json.Marshal(wire.AttachRequest{Cursor: wire.Cursor{StoreEpoch: "s", StreamEpoch: w.streamEpoch(), Sequence: sequence}})
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.attacher.Handle(w.Context(), w.node, request); err != nil {
		w.Fatal(err)
	}
	consumer, err := w.js.Consumer(w.Context(), subject.DesiredStream, w.node)
	if err != nil {
		w.Fatal(err)
	}
	return consumer
}

// TestView_ProgressFollowsTheNode: from no knowledge, through sent but not acked, to applied, with a deletion at the end.
func TestView_ProgressFollowsTheNode(t *testing.T) {
	w := newInspectFixture(t)
	w.waitProgress("nothing published", 0, nil, nil)
	a := w.publishVersion(configMapKey("a"), wire.Apply, "1", 0)
	marker := w.publishVersion(wire.SnapshotMarker(), wire.Apply, "m", 0)
	w.waitProgress("never heard", 1, nil, nil)

	w.sendHeartbeat(marker)
	w.waitProgress("applied", 1, new(1), new(1))
	consumer := w.attachNode(marker)
	b := w.publishVersion(configMapKey("b"), wire.Apply, "2", 0)
	c := w.publishVersion(configMapKey("c"), wire.Apply, "3", 0)
	w.waitProgress("published", 3, new(1), new(1))

	batch, err := consumer.Fetch(1)
	if err != nil {
		t.Fatal(err)
	}
	msg := <-batch.Messages()
	kit.Eventually(t, "the consumer has sent one", func() bool {
		p := w.readSync().Node.Progress
		return p.Delivered != nil && *p.Delivered == 2 && *p.Applied == 1 && p.Consumer.AckPending == 1
	})
	if err := msg.DoubleAck(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.waitProgress("acked, though not told by a heartbeat", 3, new(2), new(2))
	states := map[string]api.State{}
	for _, o := range w.readSync().Objects {
		states[o.Name] = o.State
	}
	if diff := cmp.Diff(map[string]api.State{"a": api.Synced, "b": api.Synced, "c": api.Pending}, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}

	w.sendHeartbeat(c)
	end := w.publishVersion(configMapKey("a"), wire.Delete, "", a)
	got := w.readSync()
	want := []api.Object{
		{Resource: "configmaps", Namespace: "default", Name: "a", UID: "uid", State: api.Deleting, Acked: "before", Sequence: end},
		{Resource: "configmaps", Namespace: "default", Name: "b", UID: "uid", State: api.Synced, Desired: "2", Acked: "2", Sequence: b},
		{Resource: "configmaps", Namespace: "default", Name: "c", UID: "uid", State: api.Synced, Desired: "3", Acked: "3", Sequence: c},
	}
	if diff := cmp.Diff(want, got.Objects, cmpopts.IgnoreFields(api.Object{}, "Changed", "AckedAt")); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if got.Objects[0].Changed.IsZero() || got.Objects[2].AckedAt.IsZero() {
		t.Errorf("no times: %+v", got.Objects)
	}
	if p := got.Node.Progress; *p.Applied != 2 || p.Oldest.IsZero() || time.Since(p.Oldest) > time.Minute {
		t.Errorf("a deletion to come: %+v", p)
	}
	if h := got.Node.Heartbeat; h == nil || h.Outbox != 7 || h.Version != "v1" {
		t.Errorf("heard %+v", h)
	}
}

// TestView_CountsBeyondDirectGet: a direct get matches 1,024 subjects at most.
func TestView_CountsBeyondDirectGet(t *testing.T) {
	w := newInspectFixture(t)
	const many = 1100
	var half uint64
	for i := range many {
		sequence := w.publishVersion(configMapKey(fmt.Sprint("c-", i)), wire.Apply, "1", 0)
		if i == many/2-1 {
			half = sequence
		}
	}
	w.sendHeartbeat(half)
	w.waitProgress("half applied", many, new(many/2), new(many/2))
}

func TestView_ListsNodes(t *testing.T) {
	w := newInspectFixture(t)
	w.sendHeartbeat(1)
	all, err := w.view.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if all.Replica != "one" || len(all.Live) != 2 {
		t.Errorf("answered by %q of %q", all.Replica, all.Live)
	}
	found := false
	for i := range all.Nodes {
		if node := &all.Nodes[i]; node.Name == w.node {
			found = node.Owner == "owner of "+w.node && node.Link == "Unknown" && node.Heartbeat != nil
		}
	}
	if !found {
		t.Errorf("%s is not as it should be in %+v", w.node, all.Nodes)
	}
	if _, err := w.view.Sync(t.Context(), "nobody"); !apierrors.IsNotFound(err) {
		t.Errorf("a node that does not exist: %v", err)
	}
	w.closeHub()
	if _, err := w.view.Nodes(t.Context()); err == nil {
		t.Error("without a hub there is an answer")
	}
}

// closeHub closes the connection that the view uses.
func (w *inspectFixture) closeHub() {
	w.js.Conn().Close()
	if _, err := w.hub.Epochs(w.Context()); err == nil {
		w.Error(errors.New("the hub still answers"))
	}
}
