package edgenode

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

// reportSink takes a report; it is durable when Report returns.
type reportSink interface {
	Report(ctx context.Context, m wire.Message) error
}

// reportInterval is how often everything is reported again while the link is up: some 5 KB a pod and hour. Half of it is
// added at random.
const reportInterval = time.Hour

// keyLocker takes an object's turn to be written and reported.
type keyLocker func(ctx context.Context, key wire.Key) (release func(), err error)

// resync reports the Node, its pods and the pods that ended here again whenever the link comes up, and every hour. While
// the link was down Kubernetes has marked them not ready; the kubelet, which talks to the local API, sees nothing of that
// and would not correct it. It also reports when the cloud asks. The hour repairs what Kubernetes refused for a time, or what the hub lost. What Kubernetes
// holds already, cloudcore drops without a write.
type resync struct {
	node  string
	store *store.Store
	link  leafLink
	sink  reportSink
	// lockKey gives an object's turn to be written, which a report needs too.
	lockKey keyLocker
	// requests is told when the cloud wants everything again; one waiting word covers all that came before it is taken.
	requests chan struct{}
	log      *zap.Logger
}

// requestReport has everything reported again. It does not block.
func (r *resync) requestReport() {
	select {
	case r.requests <- struct{}{}:
	default:
	}
}

// Start reports until ctx ends and then returns nil.
func (r *resync) Start(ctx context.Context) error {
	for {
		up, changed := r.link.State()
		if up {
			if err := r.reportAll(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("statuses not reported again", zap.Error(err))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-r.requests:
		case <-time.After(reportInterval + rand.N(reportInterval/2)): //nolint:gosec // not a secret
		}
	}
}

func (r *resync) reportAll(ctx context.Context) error {
	keys := []wire.Key{{Resource: "nodes", Name: r.node}}
	pods, _ := r.store.List("", "pods", "")
	for _, pod := range pods {
		keys = append(keys, pod.Key)
	}
	var faults []error
	for _, key := range keys {
		if err := r.reportObject(ctx, key); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", key.Human(), err))
		}
	}
	for _, deleted := range r.store.DeletedHere() {
		if err := r.reportDeletion(ctx, deleted); err != nil {
			faults = append(faults, fmt.Errorf("end of %s: %w", deleted.Key.Human(), err))
		}
	}
	return errors.Join(faults...)
}

// reportRequested reports an object that the cloud asks for; only the Node and its pods have a state that this node knows best.
func (r *resync) reportRequested(ctx context.Context, key wire.Key) error {
	if key.Group != "" || key.Resource != "pods" && key != (wire.Key{Resource: "nodes", Name: r.node}) {
		return fmt.Errorf("%s is not this node's to report", key.Human())
	}
	return r.reportObject(ctx, key)
}

// reportObject reports an object's present state, while nobody else writes it: the outbox keeps what came last.
func (r *resync) reportObject(ctx context.Context, key wire.Key) error {
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
		return nil // another node's, here only for those who look at it
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

// reportDeletion reports the end of an object, unless another one has its name by now.
func (r *resync) reportDeletion(ctx context.Context, deleted store.Entry) error {
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
