// Package resync reports the present state of a gateway's own objects again: its Node, its pods and the deletions made here.
//
// It repairs what Kubernetes changed while the link was down, reports that Kubernetes refused for a time, and reports that the hub
// lost. It writes nothing but reports.
package resync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// Sink takes a report; it is durable when Report returns.
type Sink interface {
	Report(ctx context.Context, m wire.Message) error
}

// reportInterval is how often everything is reported again while the link is up, without a comparison: about 5 KB per pod and hour. Up
// to half of it is added at random.
const reportInterval = time.Hour

// Link reports whether the cloud is reachable.
type Link interface {
	State() (up bool, changed <-chan struct{})
}

// KeyLocker acquires the lock under which an object is written and reported.
type KeyLocker func(ctx context.Context, key wire.Key) (release func(), err error)

// Reporter reports the Node, its pods and the pods that ended here again whenever the link comes up, and every hour. While
// the link was down Kubernetes has marked them not ready. The kubelet, which uses the local API, does not see that and
// would not correct it. Reporter also reports when the cloud asks. Before it does, it asks the cloud which pods have the status that
// Kubernetes has, and leaves these out, but not in its hourly reports. cloudcore drops other reports of a state that Kubernetes already
// has, without a write.
type Reporter struct {
	node  string
	store *store.Store
	link  Link
	sink  Sink
	// lockKey acquires an object's write lock, which a report needs too.
	lockKey KeyLocker
	// requests is signalled when the cloud requests a full report; one waiting token covers all earlier requests.
	requests chan struct{}
	compare  CompareFunc
	// interval and comparePause are constants outside tests.
	interval, comparePause time.Duration
	log                    *zap.Logger
}

// New returns the reporter of a node.
func New(node string, st *store.Store, link Link, sink Sink, lockKey KeyLocker, compare CompareFunc, log *zap.Logger) *Reporter {
	return &Reporter{
		node: node, store: st, link: link, sink: sink, lockKey: lockKey, requests: make(chan struct{}, 1), compare: compare,
		interval: reportInterval, comparePause: comparePause, log: log,
	}
}

// RequestReport requests a report of everything. It does not block.
func (r *Reporter) RequestReport() {
	select {
	case r.requests <- struct{}{}:
	default:
	}
}

// Start reports until ctx ends and then returns nil.
func (r *Reporter) Start(ctx context.Context) error {
	hourly := time.NewTimer(r.nextFull(true))
	defer hourly.Stop()
	for full := false; ; {
		up, changed := r.link.State()
		if up {
			if err := r.reportAll(ctx, full, changed); err != nil && ctx.Err() == nil {
				r.log.Warn("statuses not reported again", zap.Error(err))
			}
		}
		if full {
			hourly.Reset(r.nextFull(up))
			full = false
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-r.requests:
		case <-hourly.C:
			full = true
		}
	}
}

// nextFull returns the time to the next report of everything without a comparison. One that was due while the link was down comes at a
// random time, so that after a long outage of the hub the gateways do not all report at once.
func (r *Reporter) nextFull(reported bool) time.Duration {
	later := rand.N(r.interval / 2) //nolint:gosec // not a secret
	if reported {
		return r.interval + later
	}
	return later
}

// reportAll reports the Node, the deletions and the pods; if full is not set, only those pods that differ from the cloud's. The Node's
// heartbeat times always differ, and it comes first: it need not wait for the comparison.
func (r *Reporter) reportAll(ctx context.Context, full bool, linkChanged <-chan struct{}) error {
	faults := []error{r.reportKey(ctx, wire.Key{Resource: "nodes", Name: r.node})}
	for _, deleted := range r.store.DeletedHere() {
		if err := r.reportDeletion(ctx, deleted); err != nil {
			faults = append(faults, fmt.Errorf("end of %s: %w", deleted.Key.Human(), err))
		}
	}
	stored, _ := r.store.List("", "pods", "")
	var pods []store.Entry
	for _, pod := range stored {
		if runsOn(pod.Object, r.node) {
			pods = append(pods, pod)
		}
	}
	if !full {
		var err error
		if pods, err = r.changedPods(ctx, pods, linkChanged); err != nil {
			return errors.Join(append(faults, err)...) // a change of the link is reported from the beginning
		}
	}
	for _, pod := range pods {
		faults = append(faults, r.reportKey(ctx, pod.Key))
	}
	return errors.Join(faults...)
}

func (r *Reporter) reportKey(ctx context.Context, key wire.Key) error {
	if err := r.reportObject(ctx, key); err != nil {
		return fmt.Errorf("%s: %w", key.Human(), err)
	}
	return nil
}

// ReportRequested reports an object that the cloud asks for. This node has the newest state only of its Node and pods.
func (r *Reporter) ReportRequested(ctx context.Context, key wire.Key) error {
	if key.Group != "" || key.Resource != "pods" && key != (wire.Key{Resource: "nodes", Name: r.node}) {
		return fmt.Errorf("%s is not this node's to report", key.Human())
	}
	return r.reportObject(ctx, key)
}

// reportObject reports an object's present state while no other writer changes it: the outbox keeps the latest report.
func (r *Reporter) reportObject(ctx context.Context, key wire.Key) error {
	release, err := r.lockKey(ctx, key)
	if err != nil {
		return err
	}
	defer release()
	entry, err := r.store.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if key.Resource == "pods" && !runsOn(entry.Object, r.node) {
		return nil // another node's pod, stored here only for its readers
	}
	return r.sink.Report(ctx, wire.Message{Key: key, Op: wire.Apply, UID: entry.UID, Version: entry.Version, Time: time.Now(), Object: entry.Object})
}

// runsOn reports whether a pod is bound to a node.
func runsOn(pod []byte, node string) bool {
	var bound struct {
		Spec struct {
			NodeName string `json:"nodeName"`
		} `json:"spec"`
	}
	return json.Unmarshal(pod, &bound) == nil && bound.Spec.NodeName == node
}

// reportDeletion reports the deletion of an object, unless another object now has its name.
func (r *Reporter) reportDeletion(ctx context.Context, deleted store.Entry) error {
	release, err := r.lockKey(ctx, deleted.Key)
	if err != nil {
		return err
	}
	defer release()
	if _, err := r.store.Get(deleted.Key); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return r.sink.Report(ctx, wire.Message{Key: deleted.Key, Op: wire.Delete, UID: deleted.UID, Version: deleted.Version, Time: time.Now()})
}
