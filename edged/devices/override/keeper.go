// Package override keeps the desired values that were set on the gateway, and serves them on its unix socket.
//
// An override wins over the desired value of its Device until it ends; each has an end. What Set and End have answered without an error is on disk.
// After an error the override is as it was before, for the running edgecore; the store is made so again, as soon as it takes writes.
package override

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/frond-edge/frond/devicetwin"
)

const (
	// saveTimeout bounds one write to the store.
	saveTimeout = 10 * time.Second
	// checkInterval is how often ends are compared with the gateway's clock, which may be set forward.
	checkInterval = time.Minute
)

// ErrUncertain reports a change that may be in the store though it is not in force: the store did not confirm it.
var ErrUncertain = errors.New("the gateway's disk has not confirmed the change")

// Store keeps records by key, as recordstore.Store does.
type Store interface {
	// Save stores records and deletes those that are nil. When it returns nil they are on disk, all of them; with an error each may be.
	Save(ctx context.Context, records map[string][]byte) error
	Load(ctx context.Context) (map[string][]byte, error)
}

// record is the stored form of the overrides of a device, which are of one Device: one of the same name that was created anew has none of them.
type record struct {
	UID    types.UID                      `json:"uid"`
	Values map[string]devicetwin.Override `json:"values"`
}

// entry is a record in memory.
type entry struct {
	record
	// deadlines are the ends of Values by a clock that nobody sets: an override never lasts longer than it was set for since the start of edgecore.
	deadlines map[string]time.Time
}

// Keeper has the overrides of a gateway. Create it with NewKeeper, run it with Start.
type Keeper struct {
	open func(context.Context) (Store, error)
	now  func() time.Time
	log  *zap.Logger
	// requests are served by Start, one by one.
	requests chan request
	loaded   chan struct{}
	// wake has room for one token: changed is not empty.
	wake chan struct{}

	mu      sync.Mutex
	entries map[types.NamespacedName]entry    // guarded by mu; changed by Start alone
	changed map[types.NamespacedName]struct{} // guarded by mu
}

// request changes the overrides of a device.
type request struct {
	id     types.NamespacedName
	change func(entry) entry
	done   chan error // has room for the one answer
}

// NewKeeper returns a Keeper. It opens nothing. now is the gateway's clock.
func NewKeeper(open func(context.Context) (Store, error), now func() time.Time, log *zap.Logger) *Keeper {
	return &Keeper{
		open: open, now: now, log: log, requests: make(chan request), loaded: make(chan struct{}), wake: make(chan struct{}, 1),
		entries: map[types.NamespacedName]entry{}, changed: map[types.NamespacedName]struct{}{},
	}
}

// Loaded is closed when Of tells the truth. Before, no device may be driven.
func (k *Keeper) Loaded() <-chan struct{} { return k.loaded }

// Of returns the overrides of a Device that are in force, by property. The caller must not change them.
func (k *Keeper) Of(id types.NamespacedName, uid types.UID) map[string]devicetwin.Override {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[id]; e.UID == uid {
		return e.Values
	}
	return nil
}

// Wake has a token after a change that TakeChanged has not returned yet.
func (k *Keeper) Wake() <-chan struct{} { return k.wake }

// TakeChanged returns the devices whose overrides have changed since the last call.
func (k *Keeper) TakeChanged() []types.NamespacedName {
	k.mu.Lock()
	defer k.mu.Unlock()
	ids := make([]types.NamespacedName, 0, len(k.changed))
	for id := range k.changed {
		ids = append(ids, id)
	}
	clear(k.changed)
	return ids
}

// Set puts values in force for a time, in place of earlier ones of the same properties. The error is ErrUncertain, or that of ctx: then they may come
// into force later.
func (k *Keeper) Set(ctx context.Context, id types.NamespacedName, uid types.UID, values map[string]string, lasts time.Duration, by string) error {
	return k.send(ctx, id, func(e entry) entry {
		next := e.clone(uid)
		now := k.now()
		since := now.UTC().Round(0) // as it is read after a restart
		for property, value := range values {
			next.Values[property] = devicetwin.Override{Value: value, By: by, Since: since, Until: since.Add(lasts)}
			next.deadlines[property] = now.Add(lasts)
		}
		return next
	})
}

// End ends overrides of a Device, all of them if no property is named. Its errors are those of Set: then they may end later.
func (k *Keeper) End(ctx context.Context, id types.NamespacedName, uid types.UID, properties ...string) error {
	return k.send(ctx, id, func(e entry) entry {
		next := e.clone(uid)
		if len(properties) == 0 {
			return entry{}
		}
		for _, property := range properties {
			delete(next.Values, property)
			delete(next.deadlines, property)
		}
		return next
	})
}

func (k *Keeper) send(ctx context.Context, id types.NamespacedName, change func(entry) entry) error {
	r := request{id: id, change: change, done: make(chan error, 1)}
	select {
	case k.requests <- r:
	case <-ctx.Done():
		return fmt.Errorf("override of %s: %w", id, ctx.Err()) // nobody has it
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUncertain, ctx.Err())
	}
}

// clone returns a copy of the entry for a Device; values of another one do not count.
func (e entry) clone(uid types.UID) entry {
	next := entry{record: record{UID: uid, Values: map[string]devicetwin.Override{}}, deadlines: map[string]time.Time{}}
	if e.UID == uid {
		maps.Copy(next.Values, e.Values)
		maps.Copy(next.deadlines, e.deadlines)
	}
	return next
}

// Start loads the overrides and serves requests until ctx ends, and then returns nil.
func (k *Keeper) Start(ctx context.Context) error {
	store := k.load(ctx)
	if store == nil {
		return nil // ctx has ended
	}
	close(k.loaded)
	s := saver{keeper: k, store: store, unsaved: map[types.NamespacedName]struct{}{}}
	s.endOverdue(ctx)
	for {
		check := time.NewTimer(s.untilNext())
		select {
		case <-ctx.Done():
			check.Stop()
			return nil
		case r := <-k.requests:
			r.done <- s.serve(ctx, r)
		case <-check.C:
			s.endOverdue(ctx)
			s.repair(ctx)
		}
		check.Stop()
	}
}

// load opens the store and reads it, as often as it takes. It returns nil when ctx ends.
func (k *Keeper) load(ctx context.Context) Store {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 6, Cap: time.Minute}
	for {
		store, err := k.open(ctx)
		if err == nil {
			err = k.read(ctx, store)
		}
		if err == nil {
			return store
		}
		if ctx.Err() == nil {
			k.log.Error("values set on the gateway are not loaded, no device is driven until they are", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(backoff.Step()):
		}
	}
}

// read loads all records. One that cannot be read is left out and logged: its device gets the desired values of the Device.
func (k *Keeper) read(ctx context.Context, store Store) error {
	records, err := store.Load(ctx)
	if err != nil {
		return fmt.Errorf("load overrides: %w", err)
	}
	now := k.now()
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, raw := range records {
		namespace, name, ok := strings.Cut(key, "/")
		var r record
		if err := json.Unmarshal(raw, &r); err != nil || !ok {
			k.log.Error("values set on the gateway are unreadable, and ended", zap.String("device", key), zap.Error(err))
			continue
		}
		e := entry{record: r, deadlines: map[string]time.Time{}}
		for property, o := range r.Values {
			e.deadlines[property] = now.Add(min(o.Until.Sub(now), o.Until.Sub(o.Since))) // the clock may have been set back
		}
		k.entries[types.NamespacedName{Namespace: namespace, Name: name}] = e
	}
	return nil
}

// setEntry makes an entry visible.
func (k *Keeper) setEntry(id types.NamespacedName, e entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(e.Values) == 0 {
		delete(k.entries, id)
	} else {
		k.entries[id] = e
	}
	k.changed[id] = struct{}{}
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// snapshot returns all entries.
func (k *Keeper) snapshot() map[types.NamespacedName]entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.entries)
}
