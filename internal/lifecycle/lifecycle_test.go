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

// eventLog records the starts and stops of parts.
type eventLog struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (j *eventLog) addLine(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *eventLog) newPart(name string) lifecycle.Part {
	ready := make(chan struct{})
	return lifecycle.Part{Name: name, Ready: ready, Start: func(ctx context.Context) error {
		j.addLine("start " + name)
		close(ready)
		<-ctx.Done()
		j.addLine("stop " + name)
		return nil
	}}
}

func TestRun_StopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j eventLog
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- lifecycle.Run(ctx, zap.NewNop(), j.newPart("a"), j.newPart("b"), j.newPart("c")) }()
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

func TestRun_FailedPartStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j eventLog
		broken := errors.New("broken")
		fails := lifecycle.Part{Name: "b", Ready: make(chan struct{}), Start: func(context.Context) error { return broken }}
		err := lifecycle.Run(t.Context(), zap.NewNop(), j.newPart("a"), fails, j.newPart("c"))
		if !errors.Is(err, broken) {
			t.Errorf("Run: %v, want %v", err, broken)
		}
		if want := []string{"start a", "stop a"}; !slices.Equal(j.lines, want) {
			t.Errorf("order %v, want %v", j.lines, want)
		}
	})
}

func TestRun_PartThatEndsUnaskedIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j eventLog
		err := lifecycle.Run(t.Context(), zap.NewNop(), j.newPart("a"), lifecycle.Part{Name: "b", Start: func(context.Context) error { return nil }})
		if err == nil {
			t.Error("Run returned nil though a part ended")
		}
	})
}
