package diskmonitor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/diskmonitor"
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

const mib = 1 << 20

type offlineCloud struct{}

func (offlineCloud) Do(context.Context, wire.KubeRequest) (wire.KubeReply, error) {
	return wire.KubeReply{}, wire.ErrOffline
}

// fillDisk uses up a disk's space and returns the file to remove.
func fillDisk(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "somebody-elses")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	kit.Must(t, err)
	for size := mib; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, unix.ENOSPC) {
			size /= 2
		} else {
			kit.Must(t, err)
		}
	}
	kit.Must(t, f.Close())
	return path
}

// diskGateway is a node without its kubelet, on a disk of 48 MiB.
type diskGateway struct {
	dir     string
	store   *store.Store
	outbox  *outbox.Outbox
	client  kubernetes.Interface
	metrics *prometheus.Registry
}

func newDiskGateway(t *testing.T) *diskGateway {
	t.Helper()
	g := &diskGateway{dir: t.TempDir(), metrics: prometheus.NewRegistry()}
	if err := unix.Mount("frond-test", g.dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("cannot mount a tmpfs, which needs root: %v", err)
	}
	t.Cleanup(func() { kit.Must(t, unix.Unmount(g.dir, 0)) })
	log := zaptest.NewLogger(t)
	l := leaftest.StartLeaf(t, leaf.Config{Dir: filepath.Join(g.dir, "nats"), Reserve: 8 * mib})
	nc := l.Client()
	js, err := jetstream.New(nc)
	kit.Must(t, err)
	kit.Must(t, topology.EnsureLeaf(t.Context(), js, log))
	g.store, err = store.Open(t.Context(), js, store.Config{
		Merge: merge.Desired, HighWaterFile: filepath.Join(g.dir, "mark"), SyncTimeout: 5 * time.Second,
	}, log)
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, g.store.Close()) })
	g.outbox, err = outbox.New("edge-1", g.store.Cursor().StoreEpoch, nc)
	kit.Must(t, err)
	api, err := localapi.New(localapi.Config{Node: "edge-1"}, g.store, offlineCloud{}, g.outbox, log)
	kit.Must(t, err)
	conditions, err := nodecondition.NewWriter("edge-1", api.ClientConfig())
	kit.Must(t, err)
	disk, err := diskmonitor.New(l, g.outbox, conditions, g.metrics, log)
	kit.Must(t, err)
	g.client, err = kubernetes.NewForConfig(api.ClientConfig())
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var parts errgroup.Group
	parts.Go(func() error { return api.Start(ctx) })
	parts.Go(func() error { return disk.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		kit.Must(t, parts.Wait())
	})
	return g
}

func (g *diskGateway) wantConditions(t *testing.T, reasons ...string) {
	t.Helper()
	kit.Succeeds(t, time.Minute, func() error {
		n, err := g.client.CoreV1().Nodes().Get(t.Context(), "edge-1", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range n.Status.Conditions {
			for _, reason := range reasons {
				if c.Type == "EdgeStorage" && c.Reason == reason && (c.Status == corev1.ConditionTrue) == (reason == "DiskHasSpace") {
					return nil
				}
			}
		}
		return fmt.Errorf("conditions %v", n.Status.Conditions)
	})
}

func desiredObject(t *testing.T, resource, name string, seq uint64) wire.Message {
	t.Helper()
	data, err := json.Marshal(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-x", ResourceVersion: "1"}})
	kit.Must(t, err)
	return wire.Message{Key: wire.Key{Resource: resource, Name: name}, Op: wire.Apply, UID: "uid-x", Version: "1", Object: data, Sequence: seq}
}

// A program fills the disk of a gateway: control changes are still stored, events are dropped, the oldest first, and
// counted. The Node reports the fault and its end, and the process continues.
func TestMonitor_FullDisk(t *testing.T) {
	g := newDiskGateway(t)
	kit.Must(t, g.store.Replace(t.Context(), []wire.Message{desiredObject(t, "nodes", "edge-1", 1)}, "s1", 1))
	g.wantConditions(t, "DiskHasSpace")
	for i := range 200 {
		kit.Must(t, g.outbox.ReportEvent(t.Context(), wire.Message{
			Key: wire.Key{Resource: "events", Namespace: "default", Name: fmt.Sprint("e", i)}, Op: wire.Apply, Object: []byte(`{}`),
		}))
	}
	other := fillDisk(t, g.dir)
	kit.Succeeds(t, time.Minute, func() error {
		return g.store.Apply(t.Context(), []wire.Message{desiredObject(t, "persistentvolumes", "pv", 2)}, 2)
	})
	g.wantConditions(t, "DiskFull", "DiskAlmostFull")
	kit.Succeeds(t, time.Minute, func() error {
		families, err := g.metrics.Gather() // it is the only one
		if err != nil {
			return err
		}
		if n := families[0].GetMetric()[0].GetCounter().GetValue(); n != 200-64 {
			return fmt.Errorf("%v dropped", n)
		}
		return nil
	})
	kit.Must(t, os.Remove(other))
	g.wantConditions(t, "DiskHasSpace")
	if c := g.store.Cursor(); c.Sequence != 2 {
		t.Errorf("cursor %+v, want 2", c)
	}
}

// fullDisk is a disk that another program has filled since it was measured last.
type fullDisk struct{ free int64 }

func (fullDisk) DiskSpace() leaf.DiskSpace {
	return leaf.DiskSpace{Free: 64 * mib, Reserve: 8 * mib, Low: true}
}
func (d fullDisk) FreeSpace() (int64, error) { return d.free, nil }

// countingTrimmer counts the calls.
type countingTrimmer struct{ calls chan uint64 }

func (c countingTrimmer) TrimEvents(_ context.Context, keep uint64) (uint64, error) {
	c.calls <- keep
	return 0, nil
}

// conditionSignal signals each write: the monitor has trimmed before it.
type conditionSignal chan struct{}

func (c conditionSignal) Write(context.Context, corev1.NodeCondition) error {
	c <- struct{}{}
	return nil
}

// Nothing is trimmed without the space to write that down, as nats-server then locks up for ever.
func TestMonitor_TrimsOnlyWithFreeSpace(t *testing.T) {
	for free, want := range map[int64]int{0: 0, mib - 1: 0, mib: 1} {
		trimmer, written := countingTrimmer{make(chan uint64, 1)}, make(conditionSignal, 1)
		disk, err := diskmonitor.New(fullDisk{free}, trimmer, written, prometheus.NewRegistry(), zaptest.NewLogger(t))
		kit.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var parts errgroup.Group
		parts.Go(func() error { return disk.Start(ctx) })
		<-written
		cancel()
		kit.Must(t, parts.Wait())
		if got := len(trimmer.calls); got != want {
			t.Errorf("%d bytes free: trimmed %d times, want %d", free, got, want)
		}
	}
}
