// Package nodestore adds to a gateway's store what its agent needs beside the objects: a count of the objects that a full snapshot
// repaired, the inventory in a heartbeat, a periodic last-good copy, and for the fault suite a history of all changes.
//
// Its decorators implement deliver.Store. They never change what is stored.
package nodestore

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// maxDeletedBytes is the space for the names of objects deleted here in a heartbeat of at most 4 KiB; with more names it
// has no inventory.
const maxDeletedBytes = 2048

// Audited is the node's store. It counts the objects that a full snapshot repaired.
type Audited struct {
	*store.Store
	repaired prometheus.Counter
}

// NewAudited returns the store, and registers the count.
func NewAudited(st *store.Store, metrics prometheus.Registerer) *Audited {
	a := &Audited{Store: st, repaired: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "frond", Subsystem: "audit", Name: "repaired_total",
		Help: "Objects that differed from a full snapshot of a stream that the store had followed, and were repaired.",
	})}
	metrics.MustRegister(a.repaired)
	return a
}

type objectVersion struct{ uid, version string }

// objectVersions returns the version of each object that the cloud sent.
func (a *Audited) objectVersions() map[wire.Key]objectVersion {
	entries, _ := a.All()
	versions := make(map[wire.Key]objectVersion, len(entries))
	for _, e := range entries {
		if e.Sequence != 0 {
			versions[e.Key] = objectVersion{e.UID, e.Version}
		}
	}
	return versions
}

// Replace is store.Replace. A snapshot of the same stream epoch changes, apart from recent changes, only objects that were
// not in the right state.
func (a *Audited) Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error {
	if a.Cursor().StreamEpoch != streamEpoch {
		return a.Store.Replace(ctx, messages, streamEpoch, sequence)
	}
	before := a.objectVersions()
	if err := a.Store.Replace(ctx, messages, streamEpoch, sequence); err != nil {
		return err
	}
	for key, now := range a.objectVersions() {
		if was, ok := before[key]; !ok || was != now {
			a.repaired.Inc()
		}
		delete(before, key)
	}
	a.repaired.Add(float64(len(before))) // they are deleted
	return nil
}

// AddInventory adds the inventory to a heartbeat.
func (a *Audited) AddInventory(beat *wire.Heartbeat) {
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
