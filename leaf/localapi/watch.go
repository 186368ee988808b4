package localapi

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/frond-edge/frond/leaf/store"
)

// Watch follows the resource from a version on, or from the present state sent first.
func (e *endpoint) Watch(ctx context.Context, opts *metainternalversion.ListOptions) (watch.Interface, error) {
	if e.relayed() {
		return e.relay(ctx, opts)
	}
	f := newFilter(e.r, opts)
	after, err := e.start(opts)
	if err != nil {
		return nil, err
	}
	bookmarks := opts != nil && opts.AllowWatchBookmarks
	initial := after == 0
	if opts != nil && opts.SendInitialEvents != nil {
		initial = *opts.SendInitialEvents
	}
	var items []runtime.Object
	switch {
	case initial:
		if items, after, err = e.snapshot(ctx, &f); err != nil {
			return nil, err
		}
	case after == 0:
		after = e.objects.Revision()
	}
	in, err := e.objects.Watch(e.r.gvr.Group, e.r.gvr.Resource, request.NamespaceValue(ctx), after)
	switch {
	case errors.Is(err, store.ErrGone):
		return nil, apierrors.NewResourceExpired("the changes since that resource version are no longer kept: list again")
	case err != nil:
		return nil, err
	}
	still := func() error { return e.still(ctx, opts) }
	if err := still(); err != nil {
		in.Stop()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watcher{e: e, in: in, filter: f, revision: after, bookmarks: bookmarks, still: still, cancel: cancel, out: make(chan watch.Event)}
	var end runtime.Object
	if bookmarks && opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		end = e.r.bookmark(after, true)
	}
	w.done.Go(func() {
		defer close(w.out)
		defer in.Stop()
		if w.initial(ctx, items, end) {
			items, end = nil, nil // a watch lives for an hour; what it began with need not
			w.run(ctx)
		}
	})
	return w, nil
}

// watcher turns events of the store into events of one client's watch. Its goroutine ends with Stop, which waits for it.
// It may be slow as its client is: the store keeps a window of events and never waits.
type watcher struct {
	e         *endpoint
	in        feed
	filter    filter
	revision  uint64 // up to which the client has been told
	bookmarks bool
	still     func() error // says when the watch must end, because it would tell of a scope's end as of deletions
	cancel    context.CancelFunc
	out       chan watch.Event // closed when the watch has ended
	done      sync.WaitGroup
}

func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

func (w *watcher) Stop() {
	w.cancel()
	w.done.Wait()
}

func (w *watcher) initial(ctx context.Context, items []runtime.Object, end runtime.Object) bool {
	for _, obj := range items {
		if !w.send(ctx, watch.Added, ownCopy(obj)) {
			return false
		}
	}
	return end == nil || w.send(ctx, watch.Bookmark, end)
}

func (w *watcher) run(ctx context.Context) {
	every := w.e.s.cfg.BookmarkEvery
	for told := w.revision; ; {
		until, cancel := ctx, context.CancelFunc(func() {})
		if w.bookmarks {
			until, cancel = context.WithTimeout(ctx, every+rand.N(every))
		}
		ok := w.follow(ctx, until)
		cancel()
		if !ok {
			return
		}
		// What is in the feed by now belongs before the mark.
		mark := w.e.objects.Revision()
		if !w.follow(ctx, until) {
			return
		}
		w.revision = max(w.revision, mark)
		if w.revision == told {
			continue
		}
		told = w.revision
		if !w.send(ctx, watch.Bookmark, w.e.r.bookmark(told, false)) {
			return
		}
	}
}

// follow passes events on until the time is up, and reports whether the watch goes on.
func (w *watcher) follow(ctx, until context.Context) bool {
	for {
		event, err := w.in.Next(until)
		switch {
		case err == nil:
			if !w.event(ctx, event) {
				return false
			}
		case ctx.Err() != nil:
			return false
		case errors.Is(err, store.ErrGone):
			status := apierrors.NewResourceExpired("this watch fell too far behind: list again").Status()
			w.send(ctx, watch.Error, &status)
			return false
		default:
			return true
		}
	}
}

func (w *watcher) send(ctx context.Context, kind watch.EventType, obj runtime.Object) bool {
	select {
	case w.out <- watch.Event{Type: kind, Object: obj}:
		return true
	case <-ctx.Done():
		return false
	}
}

// event passes one change on, as this watch's filter sees it. It reports whether the watch goes on.
func (w *watcher) event(ctx context.Context, event store.Event) bool {
	w.revision = event.Entry.Revision
	if err := w.still(); err != nil {
		status := err.(apierrors.APIStatus).Status()
		w.send(ctx, watch.Error, &status)
		return false
	}
	if !w.filter.mayMatch(event.Entry.Key.Namespace, event.Entry.Key.Name) {
		return true
	}
	kind, obj, err := w.translate(event)
	if err != nil {
		status := apierrors.NewInternalError(err).Status()
		w.send(ctx, watch.Error, &status)
		return false
	}
	return kind == "" || w.send(ctx, kind, obj)
}

// translate says what a change looks like through the filter: an object that no longer matches is a deleted one. The kind
// is "" if the change is not seen at all.
func (w *watcher) translate(event store.Event) (watch.EventType, runtime.Object, error) {
	var last, next runtime.Object
	var err error
	if event.Type != store.Deleted {
		if next, _, err = w.e.r.decode(event.Entry); err != nil {
			return "", nil, err
		}
		if !w.filter.matches(next) {
			next = nil
		}
	}
	if event.Prev != nil && (next == nil || w.filter.needsObject()) {
		if last, _, err = w.e.r.decode(*event.Prev); err != nil {
			return "", nil, err
		}
		if !w.filter.matches(last) {
			last = nil
		}
	}
	switch {
	case next != nil && event.Type == store.Modified && (last != nil || !w.filter.needsObject()):
		return watch.Modified, next, nil
	case next != nil:
		return watch.Added, next, nil
	case last != nil:
		m, err := meta.Accessor(last)
		if err != nil {
			return "", nil, err
		}
		// A deletion is an event of its own: its version is the deletion's, or a client would resume before it.
		m.SetResourceVersion(localVersion(event.Entry.Revision))
		return watch.Deleted, last, nil
	default:
		return "", nil, nil
	}
}
