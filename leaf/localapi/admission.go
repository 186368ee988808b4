package localapi

import (
	"context"

	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// admitList admits the making of a list until done, and waits if there are too many. The node does not wait for others.
func (s *Server) admitList(ctx context.Context) (done func(), err error) {
	if caller.Of(ctx).Trusted {
		return func() {}, nil
	}
	select {
	case s.listSlots <- struct{}{}:
		return func() { <-s.listSlots }, nil
	case <-ctx.Done():
		return nil, respond.RetryLater("too many lists are being read on this gateway")
	}
}
