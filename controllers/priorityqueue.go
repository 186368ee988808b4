package controllers

import (
	"context"
	"sync"
	"time"
)

// Priority is the class of an item in a PriorityQueue.
type Priority int

// The priorities.
const (
	// Background is for work that repairs or prepares.
	Background Priority = iota
	// Urgent is for work that carries a change.
	Urgent
)

// PriorityQueue is a work queue with two priorities. Each priority has a queue and workers of its own: an urgent item waits
// for no background item, and background items are processed however many urgent ones there are. An item that was added with
// both priorities is processed twice, but never by two workers at a time. Its methods may be called concurrently.
type PriorityQueue[T comparable] struct {
	queues [2]Queue[T] // by Priority

	mu sync.Mutex
	// running holds the items in process; true: a worker of the other priority has received the item meanwhile. Guarded by mu.
	running map[T]bool
}

// NewPriorityQueue creates a queue that retries a failed item after first, then after twice as long each time, up to most.
// The caller must shut it down, as Process does.
func NewPriorityQueue[T comparable](first, most time.Duration) *PriorityQueue[T] {
	return &PriorityQueue[T]{queues: [2]Queue[T]{NewQueue[T](first, most), NewQueue[T](first, most)}, running: map[T]bool{}}
}

// Add adds an item.
func (q *PriorityQueue[T]) Add(p Priority, item T) { q.queues[p].Add(item) }

// AddAfter adds an item after a delay.
func (q *PriorityQueue[T]) AddAfter(p Priority, item T, after time.Duration) {
	q.queues[p].AddAfter(item, after)
}

// AddRateLimited adds an item after the delay of a failed one.
func (q *PriorityQueue[T]) AddRateLimited(p Priority, item T) { q.queues[p].AddRateLimited(item) }

// Len returns the number of items that are ready to be processed.
func (q *PriorityQueue[T]) Len() int { return q.queues[Background].Len() + q.queues[Urgent].Len() }

// ShutDown ends the queue.
func (q *PriorityQueue[T]) ShutDown() {
	q.queues[Background].ShutDown()
	q.queues[Urgent].ShutDown()
}

// Workers are the numbers of workers of a PriorityQueue, and what they do.
type Workers[T comparable] struct {
	Urgent, Background int
	// Admit is called for a background item before it counts as being processed, so that an urgent one need not wait for
	// the end of the call. false drops the item. nil admits all.
	Admit func(context.Context, T) bool
	// Do processes an item. An item with an error is retried; Do itself logs and counts the error.
	Do func(context.Context, Priority, T) error
}

// Process processes the items until ctx ends and all workers have stopped, and shuts the queue down.
func (q *PriorityQueue[T]) Process(ctx context.Context, w Workers[T]) {
	var both sync.WaitGroup
	both.Go(func() {
		ProcessQueue(ctx, q.queues[Urgent], w.Urgent, func(ctx context.Context, item T) error {
			return q.processExclusively(ctx, Urgent, item, w.Do)
		})
	})
	both.Go(func() {
		ProcessQueue(ctx, q.queues[Background], w.Background, func(ctx context.Context, item T) error {
			if w.Admit != nil && !w.Admit(ctx, item) {
				return nil
			}
			return q.processExclusively(ctx, Background, item, w.Do)
		})
	})
	both.Wait()
}

// processExclusively processes an item, or leaves it to the worker of the other priority that is processing it to add it again.
func (q *PriorityQueue[T]) processExclusively(ctx context.Context, p Priority, item T, do func(context.Context, Priority, T) error) error {
	if !q.claim(item) {
		return nil
	}
	defer q.release(p, item)
	return do(ctx, p, item)
}

// claim begins to process an item. It returns false if a worker of the other priority is doing so.
func (q *PriorityQueue[T]) claim(item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, busy := q.running[item]
	q.running[item] = busy
	return !busy
}

// release ends what claim began, and adds the item again with the other priority if a worker of that one has received it.
func (q *PriorityQueue[T]) release(p Priority, item T) {
	q.mu.Lock()
	again := q.running[item]
	delete(q.running, item)
	q.mu.Unlock()
	if again {
		q.queues[Urgent-p].Add(item)
	}
}
