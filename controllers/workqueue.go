package controllers

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// Queue is a work queue that holds each item once.
type Queue[T comparable] = workqueue.TypedRateLimitingInterface[T]

// NewQueue creates a queue that retries a failed item after first, then after twice as long each time, up to most. The
// caller must shut it down, as ProcessQueue does.
func NewQueue[T comparable](first, most time.Duration) Queue[T] {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[T](first, most))
}

// ProcessQueue runs do on the queue's items with a number of workers, until ctx ends and all workers have stopped; it
// shuts the queue down. No two workers process the same item at a time. An item for which do returns an error is
// retried; do itself logs and counts the error.
func ProcessQueue[T comparable](ctx context.Context, queue Queue[T], workers int, do func(context.Context, T) error) {
	defer context.AfterFunc(ctx, queue.ShutDown)() // ends the workers
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

// IgnoreCanceled returns the error of a component, or nil if ctx has ended.
func IgnoreCanceled(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
