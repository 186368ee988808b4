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
	// registryWatchPeriod is how long one watch of the registry lasts. It lives on one server of the hub and may end
	// with it silently, so each is followed by another, which reports all entries again.
	registryWatchPeriod = time.Minute
)

// Registry is a scopes.Registry: one value per node, replaced by compare and set.
type Registry struct{ kv jetstream.KeyValue }

// New returns the registry in a bucket of the hub.
func New(kv jetstream.KeyValue) Registry { return Registry{kv} }

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

// Watch implements scopes.Registry. It follows one watch of the bucket by another before the server of either can end silently.
func (r Registry) Watch(ctx context.Context, each func(node string, value []byte), all func()) error {
	watcher, err := r.kv.Watch(ctx, scopesPrefix+"*")
	if err != nil {
		return fmt.Errorf("watch the registry: %w", err)
	}
	defer func() { _ = watcher.Stop() }() // fails only when the connection is gone
	ticker := time.NewTicker(registryWatchPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			next, err := r.kv.Watch(ctx, scopesPrefix+"*")
			if err != nil {
				return fmt.Errorf("watch the registry: %w", err)
			}
			_ = watcher.Stop() // the same
			watcher = next
		case entry, ok := <-watcher.Updates():
			switch {
			case !ok:
				return errors.New("the watch of the registry ended")
			case entry == nil:
				all()
			default:
				emitEntry(entry, each)
			}
		}
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
