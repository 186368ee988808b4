package localapi

import (
	"context"
	"fmt"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// locks lets the writes of one object take turns, so that its reports leave in the order of its stored states. A turn is a
// token in a channel, not a mutex, because it includes I/O and the wait must end with the request.
type locks struct {
	mu    sync.Mutex          // guards all below
	turns map[wire.Key]*turns // only of objects that are being written
}

type turns struct {
	token chan struct{} // one token: its holder writes
	users int           // holder and waiters, guarded by locks.mu
}

// Hold waits for an object's turn to be written and takes it: until release, no request writes or reports it. It is for
// whoever reports an object's present state besides: a report of a state that a request is about to replace would follow
// that request's own report, and the last one counts.
func (s *Server) Hold(ctx context.Context, key wire.Key) (release func(), err error) {
	return s.locks.acquire(ctx, key)
}

func newLocks() *locks { return &locks{turns: map[wire.Key]*turns{}} }

func (l *locks) acquire(ctx context.Context, key wire.Key) (release func(), err error) {
	l.mu.Lock()
	t := l.turns[key]
	if t == nil {
		t = &turns{token: make(chan struct{}, 1)}
		l.turns[key] = t
	}
	t.users++
	l.mu.Unlock()
	select {
	case t.token <- struct{}{}:
		return func() {
			<-t.token
			l.leave(key, t)
		}, nil
	case <-ctx.Done():
		l.leave(key, t)
		return nil, fmt.Errorf("wait to write %s: %w", key.Human(), ctx.Err())
	}
}

func (l *locks) leave(key wire.Key, t *turns) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.users--; t.users == 0 {
		delete(l.turns, key)
	}
}
