package localapi

import (
	"context"

	"github.com/frond-edge/frond/api/wire"
)

// LockKey waits for an object's write lock and acquires it: until release, no request writes or reports the object. Any
// other component that reports an object's present state must hold it: a report of a state that a request is about to
// replace would follow that request's own report, and the last report counts.
func (s *Server) LockKey(ctx context.Context, key wire.Key) (release func(), err error) {
	return s.keyLocks.LockKey(ctx, key)
}
