package nodecondition_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/nodecondition"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/merge"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

type offlineCloud struct{}

func (offlineCloud) Do(context.Context, wire.KubeRequest) (wire.KubeReply, error) {
	return wire.KubeReply{}, wire.ErrOffline
}

func newNode(t *testing.T) (*nodecondition.Writer, kubernetes.Interface) {
	t.Helper()
	dir, log := t.TempDir(), zaptest.NewLogger(t)
	nc := leaftest.StartLeaf(t, leaf.Config{Dir: filepath.Join(dir, "nats")}).Client()
	js, err := jetstream.New(nc)
	kit.Must(t, err)
	kit.Must(t, topology.EnsureLeaf(t.Context(), js, log))
	st, err := store.Open(t.Context(), js, store.Config{Merge: merge.Desired, HighWaterFile: filepath.Join(dir, "mark")}, log)
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, st.Close()) })
	node, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "edge-1", UID: "uid-x", ResourceVersion: "1"}})
	kit.Must(t, err)
	kit.Must(t, st.Replace(t.Context(), []wire.Message{{
		Key: wire.Key{Resource: "nodes", Name: "edge-1"}, Op: wire.Apply, UID: "uid-x", Version: "1", Object: node, Sequence: 1,
	}}, "s1", 1))
	reports, err := outbox.New("edge-1", st.Cursor().StoreEpoch, nc)
	kit.Must(t, err)
	api, err := localapi.New(localapi.Config{Node: "edge-1"}, st, offlineCloud{}, reports, log)
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- api.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		kit.Must(t, <-ended)
	})
	w, err := nodecondition.NewWriter("edge-1", api.ClientConfig())
	kit.Must(t, err)
	client, err := kubernetes.NewForConfig(api.ClientConfig())
	kit.Must(t, err)
	return w, client
}

func TestWriter_ReplacesAndKeeps(t *testing.T) {
	w, client := newNode(t)
	reason := func() string {
		n, err := client.CoreV1().Nodes().Get(t.Context(), "edge-1", metav1.GetOptions{})
		kit.Must(t, err)
		for _, c := range n.Status.Conditions {
			if c.Type == "EdgeDevices" {
				return c.Reason
			}
		}
		return ""
	}
	condition := func(reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: "EdgeDevices", Status: corev1.ConditionTrue, Reason: reason}
	}
	kit.Must(t, w.Replace(t.Context(), condition("NotServed")))
	if got := reason(); got != "" {
		t.Errorf("a Node without the condition has %q", got)
	}
	kit.Must(t, w.Ensure(t.Context(), condition("Served")))
	kit.Must(t, w.Replace(t.Context(), condition("NotServed")))
	if got := reason(); got != "NotServed" {
		t.Errorf("reason %q", got)
	}
}

func TestKeep_TriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		writes := 0
		nodecondition.Keep(ctx, func(context.Context) error {
			if writes++; writes == 2 {
				cancel()
			}
			return errors.New("not registered yet")
		}, zap.NewNop())
		if writes != 2 {
			t.Errorf("%d writes", writes)
		}
	})
}
