package rulefeed

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A handler goes on for as long as the hub confirms the message, over lost requests; when it is cut from the hub, it ends before the message can be with
// another cloudcore.
func TestHold(t *testing.T) {
	const cut = 100 * time.Second
	for name, fail := range map[string]func(ctx context.Context) error{
		"no answer": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
		"refused at once": func(context.Context) error { return errors.New("closed") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun, requests := time.Now(), 0
				confirm := func(ctx context.Context) error {
					if requests++; requests%2 == 0 && time.Since(begun) < cut {
						return nil
					}
					return fail(ctx)
				}
				var ended time.Duration
				err := defaultHoldTimes().handle(t.Context(), confirm, Message{}, func(ctx context.Context, _ Message) error {
					<-ctx.Done()
					ended = time.Since(begun)
					return ctx.Err()
				})
				if !errors.Is(err, errNotConfirmed) || ended < cut || ended > cut+defaultHoldTimes().limit {
					t.Errorf("ended after %s with %v", ended, err)
				}
			})
		})
	}
}

// What was handled is handled, also when the hub confirmed nothing.
func TestHold_Handled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		confirm := func(context.Context) error { return errors.New("closed") }
		err := defaultHoldTimes().handle(t.Context(), confirm, Message{}, func(ctx context.Context, _ Message) error {
			<-ctx.Done()
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}
