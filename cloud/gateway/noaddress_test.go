package gateway_test

import (
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/cloud/gateway"
)

// A gateway without any address, as frond init configures it, ends when its context does, and not before: cloudcore
// would end with it.
func TestGateway_StaysWithoutAddress(t *testing.T) {
	g, err := gateway.New(gateway.Config{}, nil, nil, nil, nil, nil, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context() // ends after the test's own code, before its cleanups
	ended := make(chan error, 1)
	var group errgroup.Group
	group.Go(func() error {
		err := g.Start(ctx)
		ended <- err
		return err
	})
	t.Cleanup(func() {
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
	<-g.Ready()
	select {
	case err := <-ended:
		t.Fatalf("it has ended: %v", err)
	case <-time.After(100 * time.Millisecond): // longer than it takes to end at once
	}
}
