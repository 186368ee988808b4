package devices

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/devicetwin"
)

const (
	// reportInterval is the least time between two reports of a device; what changes meanwhile is reported once.
	reportInterval = time.Second
	// maxReports bounds the reports of a gateway in one reportInterval: each is a write to the disk, and perhaps one to Kubernetes.
	maxReports = 20
	// repeatInterval is how often all devices are reported again while the link is up, as resync does it with pods. Up to half of it is added at
	// random.
	repeatInterval = time.Hour
)

// Sink takes a report; it is durable when Report returns.
type Sink interface {
	Report(ctx context.Context, m wire.Message) error
}

// Link reports whether the cloud is reachable.
type Link interface {
	State() (up bool, changed <-chan struct{})
}

// reporter reports what devices say as the DeviceStatus of each. When the link comes up it reports all of them again: while it was down, the cloud
// has marked them as unknown. It implements broker.Observer.
type reporter struct {
	sink Sink
	link Link
	log  *zap.Logger
	// wake has room for one token: something is due.
	wake chan struct{}

	mu    sync.Mutex
	twins map[types.NamespacedName]devicetwin.Twin // guarded by mu; all devices
	due   map[types.NamespacedName]bool            // guarded by mu; those to be reported
}

func newReporter(sink Sink, link Link, log *zap.Logger) *reporter {
	return &reporter{
		sink: sink, link: link, log: log, wake: make(chan struct{}, 1),
		twins: map[types.NamespacedName]devicetwin.Twin{}, due: map[types.NamespacedName]bool{},
	}
}

// TwinsChanged implements broker.Observer.
func (r *reporter) TwinsChanged(changed []devicetwin.Twin, removed []types.NamespacedName) {
	r.mu.Lock()
	for _, twin := range changed {
		r.twins[twin.Spec.ID], r.due[twin.Spec.ID] = twin, true
	}
	for _, id := range removed {
		delete(r.twins, id)
		delete(r.due, id)
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// twin returns what is known of a device.
func (r *reporter) twin(id types.NamespacedName) (devicetwin.Twin, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	twin, ok := r.twins[id]
	return twin, ok
}

// start reports until ctx ends.
func (r *reporter) start(ctx context.Context) {
	linked := false
	repeat := time.After(repeatInterval)
	for ctx.Err() == nil {
		up, changed := r.link.State()
		if up && !linked {
			r.dueAll()
		}
		linked = up
		var next <-chan time.Time
		if r.reportDue(ctx) {
			next = time.After(reportInterval)
		}
		wake := r.wake
		if next != nil {
			wake = nil // what comes meanwhile is reported then
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-wake:
		case <-next:
		case <-repeat:
			r.dueAll()
			repeat = time.After(repeatInterval + rand.N(repeatInterval/2)) //nolint:gosec // not a secret
		}
	}
}

func (r *reporter) dueAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.twins {
		r.due[id] = true
	}
}

// reportDue reports devices that are due, up to maxReports. It returns whether there were any.
func (r *reporter) reportDue(ctx context.Context) bool {
	r.mu.Lock()
	ids := slices.SortedFunc(maps.Keys(r.due), func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] }) //nolint:gosec // so that none waits for ever
	ids = ids[:min(len(ids), maxReports)]
	twins := make([]devicetwin.Twin, len(ids))
	for i, id := range ids {
		twins[i] = r.twins[id]
		delete(r.due, id)
	}
	r.mu.Unlock()
	for _, twin := range twins {
		if err := r.report(ctx, twin); err != nil && ctx.Err() == nil {
			r.log.Warn("status of a device not reported, trying again", zap.Stringer("device", twin.Spec.ID), zap.Error(err))
			r.mu.Lock()
			if _, there := r.twins[twin.Spec.ID]; there {
				r.due[twin.Spec.ID] = true
			}
			r.mu.Unlock()
		}
	}
	return len(twins) > 0
}

func (r *reporter) report(ctx context.Context, twin devicetwin.Twin) error {
	status, err := devicetwin.Status(twin.Spec, twin.Record, twin.Conditions)
	if err != nil {
		return err
	}
	id := twin.Spec.ID
	object, err := json.Marshal(devices.DeviceStatus{
		TypeMeta:   metav1.TypeMeta{APIVersion: devices.Group + "/" + devices.Version, Kind: "DeviceStatus"},
		ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name},
		Status:     status,
	})
	if err != nil {
		return fmt.Errorf("encode status of %s: %w", id, err)
	}
	return r.sink.Report(ctx, wire.Message{
		Key: keyOf(devices.DeviceStatusesResource, id), Op: wire.Apply, UID: string(twin.Spec.UID), Time: now(), Object: object,
	})
}
