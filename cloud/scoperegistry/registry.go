// Package scoperegistry stores the scopes that nodes want and were granted in the hub's registry bucket, for all replicas.
package scoperegistry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// scopesPrefix precedes the node in the registry's keys.
	scopesPrefix = "scopes."
	// registryTimeout bounds one request to the registry.
	registryTimeout = 5 * time.Second
	// renewEvery is how long one watch of the registry lasts, and so how long an entry may stay unseen if its server dies.
	// The next one costs two requests.
	renewEvery = time.Minute
	// fullReadRounds is the number of watches after which one reads all entries, once an hour: a change that the hub itself has
	// lost is not in what follows. With 100,000 nodes that have scopes it is 40 MB and a second of CPU.
	fullReadRounds = 60
)

// Registry is a scopes.Registry: one value per node, replaced by compare and set.
type Registry struct {
	kv         jetstream.KeyValue
	renewEvery time.Duration
}

// New returns the registry in a bucket of the hub.
func New(kv jetstream.KeyValue) Registry { return Registry{kv: kv, renewEvery: renewEvery} }

func scopesKey(node string) string { return scopesPrefix + wire.Escape(node) }

// Get implements scopes.Registry.
func (r Registry) Get(ctx context.Context, node string) (value []byte, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	entry, err := r.kv.Get(ctx, scopesKey(node))
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	}
	return entry.Value(), entry.Revision(), nil
}

// Put implements scopes.Registry.
func (r Registry) Put(ctx context.Context, node string, value []byte, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	var err error
	if revision == 0 {
		_, err = r.kv.Create(ctx, scopesKey(node), value)
	} else {
		_, err = r.kv.Update(ctx, scopesKey(node), value, revision)
	}
	return wrapConflict(err)
}

// Delete implements scopes.Registry.
func (r Registry) Delete(ctx context.Context, node string, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	return wrapConflict(r.kv.Delete(ctx, scopesKey(node), jetstream.LastRevision(revision)))
}

func wrapConflict(err error) error {
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return fmt.Errorf("%w: %w", wire.ErrConflict, err)
	}
	return err
}

// Watch implements scopes.Registry. A watch lives on one server of the hub and may end with it silently. It is therefore
// followed by another every renewEvery, which starts after the last entry that was received, so that nothing is read twice.
func (r Registry) Watch(ctx context.Context, each func(node string, value []byte), all func()) error {
	w := watch{Registry: r, each: each, all: all}
	if err := w.begin(ctx, 0); err != nil {
		return err
	}
	defer func() { _ = w.watcher.Stop() }() // fails only when the connection is gone
	ticker := time.NewTicker(r.renewEvery)
	defer ticker.Stop()
	for round := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := w.renew(ctx, round%fullReadRounds == 0); err != nil {
				return err
			}
			round++
		case entry, ok := <-w.watcher.Updates():
			if !ok {
				return errors.New("the watch of the registry ended")
			}
			w.receive(entry)
		}
	}
}

// watch follows the entries of nodes.
type watch struct {
	Registry

	each    func(node string, value []byte)
	all     func()
	watcher jetstream.KeyWatcher
	// resumed: watcher did not start with the first entry, and its end of the existing entries means nothing.
	resumed bool
	// seen is the revision of the last entry received; all entries up to it were.
	seen uint64
}

// begin starts a watch after a revision, which ends the one before; 0: with all entries.
func (w *watch) begin(ctx context.Context, after uint64) error {
	var options []jetstream.WatchOpt
	if after > 0 {
		options = append(options, jetstream.ResumeFromRevision(after+1))
	}
	next, err := w.kv.Watch(ctx, scopesPrefix+"*", options...)
	if err != nil {
		return fmt.Errorf("watch the registry: %w", err)
	}
	if w.watcher != nil {
		_ = w.watcher.Stop() // fails only when the connection is gone
	}
	w.watcher, w.resumed, w.seen = next, after > 0, after
	return nil
}

// renew starts the next watch: after the last entry that was received, unless all are to be read, or the bucket was replaced
// by one with lower revisions.
func (w *watch) renew(ctx context.Context, whole bool) error {
	after := w.seen
	if whole {
		after = 0
	}
	if after > 0 {
		last, err := w.lastRevision(ctx)
		if err != nil {
			return err
		}
		if last < after {
			after = 0
		}
	}
	return w.begin(ctx, after)
}

// lastRevision returns the revision of the bucket's last entry, of whatever kind.
func (w *watch) lastRevision(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, registryTimeout)
	defer cancel()
	status, err := w.kv.Status(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the registry's last revision: %w", err)
	}
	bucket, ok := status.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return 0, fmt.Errorf("the registry's status is a %T", status)
	}
	return bucket.StreamInfo().State.LastSeq, nil
}

// receive handles one entry, or nil: the end of those that existed when the watch began.
func (w *watch) receive(entry jetstream.KeyValueEntry) {
	switch {
	case entry != nil:
		w.seen = max(w.seen, entry.Revision())
		emitEntry(entry, w.each)
	case !w.resumed:
		w.all()
	}
}

// emitEntry calls each for one entry, unless the entry is not a node's.
func emitEntry(entry jetstream.KeyValueEntry, each func(node string, value []byte)) {
	token, ok := strings.CutPrefix(entry.Key(), scopesPrefix)
	node, err := wire.Unescape(token)
	if !ok || err != nil || node == "" {
		return
	}
	if entry.Operation() != jetstream.KeyValuePut {
		each(node, nil)
		return
	}
	each(node, entry.Value())
}
