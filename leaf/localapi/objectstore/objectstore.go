// Package objectstore is where the objects of a served resource are: the node's store, or memory.
package objectstore

import (
	"context"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// Persistent adapts the node's store to Store.
type Persistent struct{ *store.Store }

// Store holds the objects of a resource: the store, or memory. The errors are the store's.
type Store interface {
	Get(key wire.Key) (store.Entry, error)
	List(group, resource, namespace string) ([]store.Entry, uint64)
	Watch(group, resource, namespace string, after uint64) (Watch, error)
	Put(ctx context.Context, key wire.Key, object []byte, ifRevision *uint64) (store.Entry, error)
	Delete(ctx context.Context, key wire.Key, uid string, ifRevision *uint64) (store.Entry, error)
	Revision() uint64
}

// Watch is a running watch of objects. Next waits for the next event; it returns ErrGone for a watch that fell too
// far behind, and ctx's error. With an ended ctx it returns events that are already there.
type Watch interface {
	Next(ctx context.Context) (store.Event, error)
	Stop()
}

// Watch implements Store.
func (s Persistent) Watch(group, resource, namespace string, after uint64) (Watch, error) {
	w, err := s.Store.Watch(group, resource, namespace, after)
	if err != nil {
		return nil, err
	}
	return w, nil
}
