package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/internal/lifecycle"
)

// journal records what parts do.
type journal struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) part(name string) lifecycle.Part {
	ready := make(chan struct{})
	return lifecycle.Part{Name: name, Ready: ready, Start: func(ctx context.Context) error {
		j.add("start " + name)
		close(ready)
		<-ctx.Done()
		j.add("stop " + name)
		return nil
	}}
}

func TestStopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- lifecycle.Run(ctx, zap.NewNop(), j.part("a"), j.part("b"), j.part("c")) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Fatalf("Run: %v", err)
		}
		want := []string{"start a", "start b", "start c", "stop c", "stop b", "stop a"}
		if !slices.Equal(j.lines, want) {
			t.Errorf("order %v, want %v", j.lines, want)
		}
	})
}

func TestAFailedPartStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		broken := errors.New("broken")
		fails := lifecycle.Part{Name: "b", Ready: make(chan struct{}), Start: func(context.Context) error { return broken }}
		err := lifecycle.Run(t.Context(), zap.NewNop(), j.part("a"), fails, j.part("c"))
		if !errors.Is(err, broken) {
			t.Errorf("Run: %v, want %v", err, broken)
		}
		if want := []string{"start a", "stop a"}; !slices.Equal(j.lines, want) {
			t.Errorf("order %v, want %v", j.lines, want)
		}
	})
}

func TestAPartThatEndsUnaskedIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		err := lifecycle.Run(t.Context(), zap.NewNop(), j.part("a"), lifecycle.Part{Name: "b", Start: func(context.Context) error { return nil }})
		if err == nil {
			t.Error("Run returned nil though a part ended")
		}
	})
}
