package index

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/leaf/store/record"
)

// ErrGone reports that the requested events are no longer kept; list again and watch from there.
var ErrGone = errors.New("events too old")

// EventType is the kind of a change; the values are those of Kubernetes' watch events.
type EventType string

// The event types.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
)

// Event is one change. Its revision is Entry.Revision; for Deleted, Entry holds the last object and the revision of
// the deletion.
type Event struct {
	Type  EventType
	Entry record.Entry
	// Prev is the state before; nil for Added.
	Prev *record.Entry
}

// eventWindow is a buffer of the newest events, oldest first. Positions count events since the index was loaded, so that a
// watcher's position stays valid when old events are dropped.
type eventWindow struct {
	list          []*Event
	firstPosition uint64 // position of list[0]
	bytes         int
	// startRevision is the revision at or below which events are missing: a watcher may start at it, not before.
	startRevision uint64
}

func (w *eventWindow) endPosition() uint64 { return w.firstPosition + uint64(len(w.list)) }

func (w *eventWindow) add(e *Event, most, mostBytes int) {
	w.list = append(w.list, e)
	w.bytes += len(e.Entry.Object)
	for len(w.list) > most || w.bytes > mostBytes && len(w.list) > 1 {
		w.startRevision = w.list[0].Entry.Revision
		w.bytes -= len(w.list[0].Entry.Object)
		w.list[0] = nil
		w.list = w.list[1:] // append moves the rest to a new array from time to time
		w.firstPosition++
	}
}

// Watcher delivers the events of one Watch, in order and without gaps. Use either Next or Events, not both. A watcher that
// is not read uses no memory of its own. When the window has moved past its position, it ends with ErrGone.
type Watcher struct {
	index     *Index
	kind      resourceKind
	namespace string
	// wake holds one token when there may be new events.
	wake     chan struct{}
	stop     chan struct{}
	stopOnce sync.Once // guards stop's close
	pumpOnce sync.Once // guards the start of Events' goroutine
	group    errgroup.Group
	events   chan Event

	// Guarded by index.mu.
	position uint64
	err      error
}

// Watch returns the events of a resource in a namespace (all for "") whose revision is above after: exactly those that
// follow a List with that revision. It returns ErrGone if the index does not keep events that far back, or never reached
// that revision. The caller must Stop the watcher.
func (x *Index) Watch(group, resource, namespace string, after uint64) (*Watcher, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if after < x.events.startRevision || after > x.revision {
		return nil, ErrGone
	}
	w := &Watcher{
		index: x, kind: resourceKind{group, resource}, namespace: namespace,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), events: make(chan Event),
		position: x.events.endPosition(),
	}
	for i, e := range x.events.list {
		if e.Entry.Revision > after {
			w.position = x.events.firstPosition + uint64(i)
			break
		}
	}
	x.watchers[w] = struct{}{}
	return w, nil
}

// publishEvent adds an event to the window and wakes the waiting watchers. The caller holds mu.
func (x *Index) publishEvent(e *Event) {
	end := x.events.endPosition()
	x.events.add(e, x.cfg.Window, x.cfg.WindowBytes)
	for w := range x.watchers {
		switch {
		case w.matches(e):
			w.wakeUp()
		case w.position == end:
			w.position++ // the event does not match, so a waiting watcher need not fall behind
		}
	}
}

func (w *Watcher) matches(e *Event) bool {
	return kindOf(e.Entry.Key) == w.kind && (w.namespace == "" || w.namespace == e.Entry.Key.Namespace)
}

func (w *Watcher) wakeUp() {
	select {
	case w.wake <- struct{}{}:
	default: // the token is already there
	}
}

// Next waits for the next event. It ends with ErrGone when the watcher was too slow, with context.Canceled after Stop,
// and with ctx's error.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	e, err := w.nextEvent(ctx.Done())
	if err == nil && e == nil {
		return Event{}, ctx.Err()
	}
	if err != nil {
		return Event{}, err
	}
	return *e, nil
}

// nextEvent waits like Next; it returns neither an event nor an error when done closes.
func (w *Watcher) nextEvent(done <-chan struct{}) (*Event, error) {
	for {
		if e, err := w.takeEvent(); e != nil || err != nil {
			return e, err
		}
		select {
		case <-done:
			return nil, nil
		case <-w.stop:
			return nil, context.Canceled
		case <-w.wake:
		}
	}
}

// takeEvent returns the next matching event, or nil if there is none yet.
func (w *Watcher) takeEvent() (*Event, error) {
	x := w.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	if w.position < x.events.firstPosition {
		w.err = ErrGone
		delete(x.watchers, w)
		return nil, w.err
	}
	for w.position < x.events.endPosition() {
		e := x.events.list[w.position-x.events.firstPosition]
		w.position++
		if w.matches(e) {
			return e, nil
		}
	}
	return nil, nil
}

// Events returns the events as a channel. It closes when the watcher ends; Err then says why. Its goroutine starts
// with the first call and is gone when Stop returns.
func (w *Watcher) Events() <-chan Event {
	w.pumpOnce.Do(func() {
		w.group.Go(func() error {
			defer close(w.events)
			for {
				e, err := w.nextEvent(nil)
				if err != nil {
					return err
				}
				select {
				case w.events <- *e:
				case <-w.stop:
					return context.Canceled
				}
			}
		})
	})
	return w.events
}

// Err returns why Events was closed: ErrGone for a watcher that was too slow, nil after Stop or before the end.
func (w *Watcher) Err() error {
	w.index.mu.RLock()
	defer w.index.mu.RUnlock()
	return w.err
}

// Stop ends the watcher and waits for its goroutine. It may be called more than once.
func (w *Watcher) Stop() {
	w.stopOnce.Do(func() { close(w.stop) })
	w.index.mu.Lock()
	delete(w.index.watchers, w)
	w.index.mu.Unlock()
	// The group's error is the reason why the pump ended; Err returns it.
	_ = w.group.Wait()
}
