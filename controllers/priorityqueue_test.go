package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/test/kit"
)

// startQueue runs a queue until the test ends.
func startQueue(t *testing.T, w controllers.Workers[string]) *controllers.PriorityQueue[string] {
	t.Helper()
	queue := controllers.NewPriorityQueue[string](time.Millisecond, 4*time.Millisecond)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		queue.Process(ctx, w)
	}()
	t.Cleanup(func() {
		cancel()
		kit.Receive(t, "the workers end", ended)
	})
	return queue
}

// Neither priority waits for the other, even if all workers of the other are busy for good.
func TestPriorityQueue_PrioritiesDoNotWaitForEachOther(t *testing.T) {
	for name, busy := range map[string]controllers.Priority{"background is stuck": controllers.Background, "urgent is stuck": controllers.Urgent} {
		t.Run(name, func(t *testing.T) {
			release, begun, done := make(chan struct{}), make(chan string, 100), make(chan string, 100)
			queue := startQueue(t, controllers.Workers[string]{Urgent: 2, Background: 2, Do: func(_ context.Context, p controllers.Priority, item string) error {
				if p == busy {
					begun <- item
					<-release
					return nil
				}
				done <- item
				return nil
			}})
			defer close(release)
			for i := range 50 {
				queue.Add(busy, fmt.Sprint("stuck-", i))
			}
			kit.Receive(t, "the first worker is busy", begun)
			kit.Receive(t, "the second worker is busy", begun)
			queue.Add(controllers.Urgent-busy, "free")
			if got := kit.Receive(t, "the other priority proceeds", done); got != "free" {
				t.Errorf("%s is done first", got)
			}
		})
	}
}

// An item with both priorities is processed by one worker at a time, and once more after it was added.
func TestPriorityQueue_ItemIsProcessedByOneWorker(t *testing.T) {
	var mu sync.Mutex
	busy, calls, last := false, 0, 0
	version := 0
	queue := startQueue(t, controllers.Workers[string]{Urgent: 4, Background: 4, Do: func(context.Context, controllers.Priority, string) error {
		mu.Lock()
		if busy {
			t.Error("processed twice at a time")
		}
		busy, last = true, version
		calls++
		n := calls
		mu.Unlock()
		defer func() {
			mu.Lock()
			busy = false
			mu.Unlock()
		}()
		if n%5 == 0 {
			return errors.New("not yet")
		}
		return nil
	}})
	for i := range 400 {
		mu.Lock()
		version = i
		mu.Unlock()
		queue.Add(controllers.Priority(i%2), "item")
	}
	kit.Eventually(t, "the last version is processed", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return last == 399 && !busy && queue.Len() == 0
	})
}

// An item that a worker of the other priority receives meanwhile is processed after the first worker is done, not beside it and not never.
func TestPriorityQueue_SecondWorkerLeavesAnItemToTheFirst(t *testing.T) {
	admitted, begun, release := make(chan string, 10), make(chan controllers.Priority, 10), make(chan struct{})
	queue := startQueue(t, controllers.Workers[string]{
		Urgent: 1, Background: 1,
		Admit: func(_ context.Context, item string) bool {
			admitted <- item
			return true
		},
		Do: func(_ context.Context, p controllers.Priority, item string) error {
			if item == "item" {
				begun <- p
				<-release
			}
			return nil
		},
	})
	queue.Add(controllers.Urgent, "item")
	kit.Receive(t, "the urgent worker has begun", begun)
	queue.Add(controllers.Background, "item")
	kit.Receive(t, "the background worker receives the item", admitted)
	queue.Add(controllers.Background, "next")
	if item := kit.Receive(t, "it goes on", admitted); item != "next" {
		t.Errorf("it receives %s before the urgent worker is done", item)
	}
	if len(begun) > 0 {
		t.Error("processed by two workers at a time")
	}
	close(release)
	if p := kit.Receive(t, "the item is processed again", begun); p != controllers.Background {
		t.Errorf("again with priority %d", p)
	}
}

// An urgent item overtakes its own background one while that waits to be admitted.
func TestPriorityQueue_AdmissionHoldsBackNoUrgentItem(t *testing.T) {
	admitted, waits, done := make(chan struct{}), make(chan string, 1), make(chan controllers.Priority, 2)
	queue := startQueue(t, controllers.Workers[string]{
		Urgent: 1, Background: 1,
		Admit: func(ctx context.Context, item string) bool {
			waits <- item
			select {
			case <-admitted:
				return item != "dropped"
			case <-ctx.Done():
				return false
			}
		},
		Do: func(_ context.Context, p controllers.Priority, _ string) error {
			done <- p
			return nil
		},
	})
	queue.Add(controllers.Background, "item")
	kit.Receive(t, "the background item waits", waits)
	queue.Add(controllers.Urgent, "item")
	if p := kit.Receive(t, "the urgent item is done", done); p != controllers.Urgent {
		t.Errorf("priority %d is done first", p)
	}
	close(admitted)
	if p := kit.Receive(t, "the background item is done", done); p != controllers.Background {
		t.Errorf("priority %d is done last", p)
	}
	queue.Add(controllers.Background, "dropped")
	kit.Receive(t, "the next one is asked about", waits)
	queue.Add(controllers.Background, "item")
	kit.Receive(t, "the one after it is asked about", waits)
	kit.Receive(t, "and done", done)
	if len(done) != 0 {
		t.Error("an item was done that was not admitted")
	}
}
