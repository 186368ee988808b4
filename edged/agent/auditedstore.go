package agent

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// maxDeletedBytes is the space for the names of objects deleted here in a heartbeat of at most 4 KiB; with more names it
// has no inventory.
const maxDeletedBytes = 2048

// audited is the node's store. It counts the objects that a full snapshot repaired.
type audited struct {
	*store.Store
	repaired prometheus.Counter
}

func newAudited(st *store.Store, metrics prometheus.Registerer) *audited {
	a := &audited{Store: st, repaired: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "frond", Subsystem: "audit", Name: "repaired_total",
		Help: "Objects that differed from a full snapshot of a stream that the store had followed, and were repaired.",
	})}
	metrics.MustRegister(a.repaired)
	return a
}

type objectVersion struct{ uid, version string }

// objectVersions returns the version of each object that the cloud sent.
func (a *audited) objectVersions() map[wire.Key]objectVersion {
	entries, _ := a.All()
	labels := make(map[wire.Key]objectVersion, len(entries))
	for _, e := range entries {
		if e.Sequence != 0 {
			labels[e.Key] = objectVersion{e.UID, e.Version}
		}
	}
	return labels
}

// Replace is store.Replace. A snapshot of the same stream epoch changes, apart from recent changes, only objects that were
// not in the right state.
func (a *audited) Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error {
	if a.Cursor().StreamEpoch != streamEpoch {
		return a.Store.Replace(ctx, messages, streamEpoch, sequence)
	}
	before := a.objectVersions()
	if err := a.Store.Replace(ctx, messages, streamEpoch, sequence); err != nil {
		return err
	}
	after := a.objectVersions()
	for key, was := range before {
		if now, ok := after[key]; !ok || now != was {
			a.repaired.Inc()
		}
	}
	for key := range after {
		if _, ok := before[key]; !ok {
			a.repaired.Inc()
		}
	}
	return nil
}

// addInventory adds the inventory to a heartbeat.
func (a *audited) addInventory(beat *wire.Heartbeat) {
	cursor, census, deleted := a.Inventory()
	names, size := make([]string, 0, len(deleted)), 0
	for _, key := range deleted {
		name := key.String()
		if size += len(name); size > maxDeletedBytes {
			return
		}
		names = append(names, name)
	}
	beat.Cursor, beat.Inventory, beat.Deleted = cursor, &census, names
}
