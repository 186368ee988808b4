package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// cloudAskDelay is how long a list by name waits for a delivery before it asks the cloud. The object is most likely on
	// its way: a pod and the objects that it mounts are published together.
	cloudAskDelay = 250 * time.Millisecond
	// deliveryTimeout ends the wait of a list if the object can be neither found nor proved absent. The client lists again;
	// a kubelet does so with backoff, so a longer wait here starts the pod sooner after the delivery.
	deliveryTimeout = 15 * time.Second
	// maxAbsences limits the number of remembered absences: optional references of pods, a handful on a real node.
	maxAbsences = 1024
)

// waitForObject returns when an object is in the store, is known to be absent, or was returned by the cloud, which it then returns.
func (e *endpoint) waitForObject(ctx context.Context, key wire.Key) (runtime.Object, error) {
	in, err := e.objects.Watch(key.Group, key.Resource, key.Namespace, e.objects.Revision())
	if err != nil {
		return nil, err
	}
	defer in.Stop()
	if _, err := e.objects.Get(key); err == nil {
		e.server.absences.removeAbsence(ctx, key)
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	type answer struct {
		obj runtime.Object
		err error
	}
	answers := make(chan answer, 1) // buffered for the one answer, so that its goroutine never blocks
	delivered := make(chan struct{})
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	helpers.Go(func() {
		for {
			event, err := in.Next(ctx)
			if errors.Is(err, store.ErrGone) || err == nil && event.Entry.Key == key && event.Type != store.Deleted {
				close(delivered)
				return
			}
			if err != nil {
				return
			}
		}
	})
	ask := time.NewTimer(cloudAskDelay)
	defer ask.Stop()
	for {
		select {
		case <-delivered:
			return nil, nil
		case <-ask.C:
			helpers.Go(func() {
				obj, err := e.fetchFromCloud(ctx, key)
				answers <- answer{obj, err}
			})
		case a := <-answers:
			if a.err == nil {
				return a.obj, nil
			}
			if apierrors.IsNotFound(a.err) {
				return nil, nil
			}
			// The link is down, or Kubernetes does not grant the object to this node yet: it may still be delivered.
		case <-ctx.Done():
			return nil, apierrors.NewServiceUnavailable(fmt.Sprintf(
				"%s has not been delivered to this gateway, and the cloud could not say whether it exists", key.Human()))
		}
	}
}

// absenceCache remembers, across restarts, the objects that the cloud reported as absent.
type absenceCache struct {
	store *store.Store
	log   *zap.Logger

	mu   sync.Mutex // guards keys
	keys map[wire.Key]bool
}

const (
	// frondGroup is the API group of this package's own records in the store, beside Kubernetes' objects.
	frondGroup      = "frond.io"
	absenceResource = "absences"
)

func newAbsenceCache(st *store.Store, log *zap.Logger) *absenceCache {
	a := &absenceCache{store: st, log: log, keys: map[wire.Key]bool{}}
	entries, _ := st.List(frondGroup, absenceResource, "")
	for _, e := range entries {
		var record absenceRecord
		if err := json.Unmarshal(e.Object, &record); err != nil {
			log.Warn("unreadable absence ignored", zap.Stringer("key", e.Key), zap.Error(err))
			continue
		}
		a.keys[record.Key] = true
	}
	return a
}

// absenceRecord is the stored form: the requested object, and the metadata that the store requires.
type absenceRecord struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Key wire.Key `json:"key"`
}

func absenceKey(key wire.Key) wire.Key {
	return wire.Key{Group: frondGroup, Resource: absenceResource, Namespace: key.Namespace, Name: key.String()}
}

func (a *absenceCache) isKnown(key wire.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keys[key]
}

func (a *absenceCache) addAbsence(ctx context.Context, key wire.Key) {
	a.mu.Lock()
	full := len(a.keys) >= maxAbsences
	seen := a.keys[key]
	if !full {
		a.keys[key] = true
	}
	a.mu.Unlock()
	if full || seen {
		return
	}
	record := absenceRecord{Key: key}
	at := absenceKey(key)
	record.Metadata.Name = at.Name
	data, err := json.Marshal(record)
	if err == nil {
		_, err = a.store.Put(ctx, at, data, nil)
	}
	if err != nil {
		// The absence stays known until a restart.
		a.log.Warn("absence not kept", zap.Stringer("key", key), zap.Error(err))
	}
}

func (a *absenceCache) removeAbsence(ctx context.Context, key wire.Key) {
	a.mu.Lock()
	seen := a.keys[key]
	delete(a.keys, key)
	a.mu.Unlock()
	if !seen {
		return
	}
	if _, err := a.store.Delete(ctx, absenceKey(key), "", nil); err != nil {
		a.log.Warn("absence not forgotten", zap.Stringer("key", key), zap.Error(err))
	}
}
