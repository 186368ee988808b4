package resync_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/resync"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

type offlineCloud struct{}

func (offlineCloud) Do(context.Context, wire.KubeRequest) (wire.KubeReply, error) {
	return wire.KubeReply{}, wire.ErrOffline
}

// requestingOutbox is an outbox that simulates a request of the cloud for the object while a deletion is being reported.
type requestingOutbox struct {
	requestReport func() // set before use
	mu            sync.Mutex
	ops           []wire.Operation // guarded by mu
	g             errgroup.Group
}

func (o *requestingOutbox) Report(_ context.Context, m wire.Message) error {
	o.mu.Lock()
	o.ops = append(o.ops, m.Op)
	o.mu.Unlock()
	if m.Op == wire.Delete {
		done := make(chan struct{})
		o.g.Go(func() error {
			defer close(done)
			o.requestReport()
			return nil
		})
		select {
		case <-done: // the answer came in between
		case <-time.After(100 * time.Millisecond): // the answer waits for the lock
		}
	}
	return nil
}

func (o *requestingOutbox) ReportEvent(context.Context, wire.Message) error { return nil }

// TestReporter_RequestDoesNotOvertakeDeletion: the outbox keeps the last report of an object. If that were the state of a pod
// whose deletion has just been reported, the cloud would never get the deletion.
func TestReporter_RequestDoesNotOvertakeDeletion(t *testing.T) {
	log := zaptest.NewLogger(t)
	l := leaftest.StartLeaf(t, leaf.Config{})
	js, err := jetstream.New(l.Client())
	kit.Must(t, err)
	octx, cancelOpen := context.WithTimeout(t.Context(), time.Minute) // without a limit the library's is 5 s
	defer cancelOpen()
	st, err := store.Open(octx, js, store.Config{}, log)
	kit.Must(t, err)
	pod := wire.Message{
		Key: wire.Key{Resource: "pods", Namespace: "default", Name: "p"}, Op: wire.Apply, UID: "u", Version: "1", Sequence: 1,
		Object: []byte(`{"metadata":{"name":"p","namespace":"default","uid":"u","resourceVersion":"1"},"spec":{"nodeName":"edge-1"}}`),
	}
	kit.Must(t, st.Apply(t.Context(), []wire.Message{pod}, 1))
	outbox := &requestingOutbox{}
	api, err := localapi.New(localapi.Config{Node: "edge-1"}, st, offlineCloud{}, outbox, log)
	kit.Must(t, err)
	reporter := resync.New("edge-1", st, streamstest.NewSwitchableLink(), outbox, api.LockKey, nil, log)
	outbox.requestReport = func() { kit.Must(t, reporter.ReportRequested(context.WithoutCancel(t.Context()), pod.Key)) }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving errgroup.Group
	serving.Go(func() error { return api.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		kit.Must(t, serving.Wait())
	})
	client, err := kubernetes.NewForConfig(api.ClientConfig())
	kit.Must(t, err)
	kit.Must(t, client.CoreV1().Pods("default").Delete(t.Context(), "p", *metav1.NewDeleteOptions(0)))
	kit.Must(t, outbox.g.Wait())
	if want := []wire.Operation{wire.Delete}; !slices.Equal(outbox.ops, want) {
		t.Errorf("reported %v, want %v", outbox.ops, want)
	}
}
