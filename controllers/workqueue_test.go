package controllers_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/test/kit"
)

// A failed item is retried, with growing delays; a completed one is not; and no item is processed twice at a time.
func TestProcessQueue_RetriesAndNeverOverlaps(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	queue := controllers.NewQueue[string](time.Millisecond, 4*time.Millisecond)
	var mu sync.Mutex
	calls, busy, done := map[string]int{}, map[string]bool{}, make(chan string, 10)
	do := func(_ context.Context, key string) error {
		mu.Lock()
		if busy[key] {
			t.Errorf("%s is done twice at a time", key)
		}
		busy[key] = true
		calls[key]++
		n := calls[key]
		mu.Unlock()
		defer func() {
			mu.Lock()
			busy[key] = false
			mu.Unlock()
		}()
		if key == "hard" && n < 5 {
			queue.Add(key) // enqueued again meanwhile
			return errors.New("not yet")
		}
		done <- key
		return nil
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		controllers.ProcessQueue(ctx, queue, 3, do)
	}()
	queue.Add("easy")
	queue.Add("hard")
	for range 2 {
		kit.Receive(t, "an item is done", done)
	}
	cancel()
	kit.Receive(t, "the workers end", ended)
	if !queue.ShuttingDown() || calls["easy"] != 1 || calls["hard"] < 5 {
		t.Errorf("shut down %v, calls %v", queue.ShuttingDown(), calls)
	}
}

// Items in progress at the stop are finished, awaited and not repeated; waiting items stay.
func TestProcessQueue_FinishesOnStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	queue := controllers.NewQueue[int](time.Millisecond, time.Millisecond)
	calls := 0
	for key := range 3 {
		queue.Add(key)
	}
	controllers.ProcessQueue(ctx, queue, 1, func(context.Context, int) error {
		calls++
		cancel()
		return errors.New("cut short")
	})
	if calls != 1 {
		t.Errorf("%d calls, want 1", calls)
	}
	if err := controllers.IgnoreCanceled(ctx, errors.New("cut short")); err != nil {
		t.Error(err)
	}
	if err := controllers.IgnoreCanceled(t.Context(), errors.New("broken")); err == nil {
		t.Error("a fault is hidden")
	}
}
