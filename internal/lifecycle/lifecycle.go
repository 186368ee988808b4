// Package lifecycle starts the parts of a process in order and stops them in reverse, and waits for each.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
)

// Part is one long-lived part of a process.
type Part struct {
	Name string
	// Start blocks until its context ends and then returns nil, after all its goroutines have ended.
	Start func(ctx context.Context) error
	// Ready closes when the next part may start; nil means at once.
	Ready <-chan struct{}
}

// slowStop is the delay after which the log names a part that has not stopped; Run still waits for it.
const slowStop = 10 * time.Second

// Run starts the parts in order, each after the one before is ready, and blocks. When ctx ends, or when a part returns, it stops them in
// reverse order, waits for each, and returns the error of the first part that failed.
func Run(ctx context.Context, log *zap.Logger, parts ...Part) error {
	ended := make(chan error, len(parts)) // one result per part, so that no part blocks
	var running []runningPart
	var failure error
	for _, part := range parts {
		r := startPart(ctx, part, ended)
		running = append(running, r)
		log.Debug("part started", zap.String("part", part.Name))
		if failure = awaitReady(ctx, part, ended); failure != nil || ctx.Err() != nil {
			break
		}
	}
	if failure == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case failure = <-ended:
		}
	}
	for _, part := range slices.Backward(running) {
		part.stopAndWait(log)
	}
	for failure == nil && len(ended) > 0 {
		failure = <-ended
	}
	return failure
}

// runningPart is a started part.
type runningPart struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// startPart runs a part under its own context, so that the end of ctx does not stop all parts at once.
func startPart(ctx context.Context, part Part, ended chan<- error) runningPart {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := runningPart{name: part.Name, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		err := part.Start(own)
		if own.Err() == nil && err == nil {
			err = errors.New("ended unasked")
		}
		if err != nil {
			ended <- fmt.Errorf("%s: %w", part.Name, err)
		}
	}()
	return r
}

func awaitReady(ctx context.Context, part Part, ended <-chan error) error {
	if part.Ready == nil {
		return nil
	}
	select {
	case <-part.Ready:
	case <-ctx.Done():
	case err := <-ended:
		return err
	}
	return nil
}

func (r runningPart) stopAndWait(log *zap.Logger) {
	r.cancel()
	slow := time.NewTimer(slowStop)
	defer slow.Stop()
	for {
		select {
		case <-r.done:
			log.Debug("part stopped", zap.String("part", r.name))
			return
		case <-slow.C:
			log.Warn("part is slow to stop", zap.String("part", r.name))
		}
	}
}
