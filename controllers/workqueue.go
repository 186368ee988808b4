package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Queue holds what is to be done, each once.
type Queue[T comparable] = workqueue.TypedRateLimitingInterface[T]

// NewQueue makes one that repeats what fails after first, then after twice as long each time, up to most. Whoever makes it shuts it
// down, as ProcessQueue does.
func NewQueue[T comparable](first, most time.Duration) Queue[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](first, most))
}

// ProcessQueue has so many workers do what the queue holds, until ctx ends and all have stopped; it shuts the queue down. No two do the
// same at a time. What do could not do comes again later; do says why, as its log and metrics need it.
func ProcessQueue[T comparable](ctx context.Context, queue Queue[T], workers int, do func(context.Context, T) error) {
	defer context.AfterFunc(ctx, queue.ShutDown)() // lets the workers end
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for processNext(ctx, queue, do) {
			}
		})
	}
	all.Wait()
	queue.ShutDown()
}

func processNext[T comparable](ctx context.Context, queue Queue[T], do func(context.Context, T) error) bool {
	key, end := queue.Get()
	if end {
		return false
	}
	defer queue.Done(key)
	if ctx.Err() != nil {
		return false
	}
	switch err := do(ctx, key); {
	case err == nil:
		queue.Forget(key)
	case ctx.Err() == nil:
		queue.AddRateLimited(key)
	}
	return true
}

// IgnoreCanceled is the error of a part, or nil if it was asked to stop.
func IgnoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
