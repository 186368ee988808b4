// Package watchstream runs one client's watch in a goroutine, which ends with the watch.
package watchstream

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Stream is a running watch, a watch.Interface.
type Stream struct {
	cancel context.CancelFunc
	events chan watch.Event // closed when the watch has ended
	done   sync.WaitGroup
}

// Start runs a watch until run returns. The context of run ends with ctx, or with Stop.
func Start(ctx context.Context, run func(ctx context.Context, events Sender)) *Stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &Stream{cancel: cancel, events: make(chan watch.Event)}
	s.done.Go(func() {
		defer close(s.events)
		run(ctx, s.events)
	})
	return s
}

// ResultChan implements watch.Interface.
func (s *Stream) ResultChan() <-chan watch.Event { return s.events }

// Stop implements watch.Interface, and waits until run has returned.
func (s *Stream) Stop() {
	s.cancel()
	s.done.Wait()
}

// Sender sends the events of a watch to its client. It waits for the client, however slow that is.
type Sender chan<- watch.Event

// Send sends an event. It reports whether the watch continues.
func (s Sender) Send(ctx context.Context, kind watch.EventType, obj runtime.Object) bool {
	select {
	case s <- watch.Event{Type: kind, Object: obj}:
		return true
	case <-ctx.Done():
		return false
	}
}

// SendError sends the status of an error, with which the watch ends.
func (s Sender) SendError(ctx context.Context, err error) {
	status := apierrors.NewInternalError(err).Status()
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	s.Send(ctx, watch.Error, &status)
}
