package jobs

import (
	"context"
	"fmt"
	"time"
)

// withLinkTimeout returns a context that ends when there was a link for the given time. Its cause says so.
func withLinkTimeout(parent context.Context, link Link, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for left := limit; ; {
			up, changed := link.State()
			var expired <-chan time.Time
			began := time.Now()
			if up {
				expired = time.After(left)
			}
			select {
			case <-ctx.Done():
				return
			case <-expired:
				cancel(fmt.Errorf("not done within %s with a link: timeoutSeconds", limit))
				return
			case <-changed:
				if up {
					left -= time.Since(began)
				}
			}
		}
	}()
	return ctx, func() {
		cancel(context.Canceled)
		<-ended
	}
}
