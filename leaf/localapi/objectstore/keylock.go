package objectstore

import (
	"context"
	"fmt"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// KeyLocks is a set of locks by key. It serializes the writes of one object, so that its reports leave in the order of its stored
// states. A lock is a token in a channel, not a mutex, because it is held across I/O and the wait must end with the request.
type KeyLocks struct {
	mu    sync.Mutex            // guards all fields below
	byKey map[wire.Key]*keyLock // only for objects that are being written
}

type keyLock struct {
	slot chan struct{} // one token: its holder writes
	refs int           // holder and waiters, guarded by keyLocks.mu
}

// NewKeyLocks creates KeyLocks that nobody holds.
func NewKeyLocks() *KeyLocks { return &KeyLocks{byKey: map[wire.Key]*keyLock{}} }

// LockKey locks a key until release, and waits for it until ctx ends.
func (l *KeyLocks) LockKey(ctx context.Context, key wire.Key) (release func(), err error) {
	l.mu.Lock()
	t := l.byKey[key]
	if t == nil {
		t = &keyLock{slot: make(chan struct{}, 1)}
		l.byKey[key] = t
	}
	t.refs++
	l.mu.Unlock()
	select {
	case t.slot <- struct{}{}:
		return func() {
			<-t.slot
			l.releaseRef(key, t)
		}, nil
	case <-ctx.Done():
		l.releaseRef(key, t)
		return nil, fmt.Errorf("wait to write %s: %w", key.Human(), ctx.Err())
	}
}

func (l *KeyLocks) releaseRef(key wire.Key, t *keyLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.refs--; t.refs == 0 {
		delete(l.byKey, key)
	}
}
