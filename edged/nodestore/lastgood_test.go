package nodestore_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/edged/nodestore"
)

// TestLastGoodSaver_SavesPeriodicallyAndAtStop: after a minute, every ten, once more at the end, and after a refusal by the disk.
func TestLastGoodSaver_SavesPeriodicallyAndAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		begun, saved := time.Now(), []time.Duration{}
		var g errgroup.Group
		g.Go(func() error {
			return nodestore.NewLastGoodSaver(func(ctx context.Context) error {
				saved = append(saved, time.Since(begun))
				return errors.Join(ctx.Err(), errors.New("disk full"))
			}, zaptest.NewLogger(t)).Start(ctx)
		})
		time.Sleep(25 * time.Minute) //nolint:forbidigo // of synctest's clock
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
		want := []time.Duration{time.Minute, 11 * time.Minute, 21 * time.Minute, 25 * time.Minute}
		if !slices.Equal(saved, want) {
			t.Errorf("saved after %v, want %v", saved, want)
		}
	})
}
