package query

import (
	"context"
	"errors"
	"math/rand/v2"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/watchstream"
	"github.com/frond-edge/frond/leaf/store"
)

// Watch sends the changes of the resource after a version, or from the present state, which it sends first.
func (r *ResourceReader) Watch(ctx context.Context, opts *metainternalversion.ListOptions) (watch.Interface, error) {
	f := kinds.NewFilter(r.resource, opts)
	after, err := r.startRevision(opts)
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
		if items, after, err = r.listMatching(ctx, &f); err != nil {
			return nil, err
		}
	case after == 0:
		after = r.objects.Revision()
	}
	in, err := r.objects.Watch(r.resource.GVR.Group, r.resource.GVR.Resource, request.NamespaceValue(ctx), after)
	switch {
	case errors.Is(err, store.ErrGone):
		return nil, apierrors.NewResourceExpired("the changes since that resource version are no longer kept: list again")
	case err != nil:
		return nil, err
	}
	still := func(at uint64) error { return r.view.checkComplete(request.NamespaceValue(ctx), opts, at) }
	if err := still(after); err != nil {
		in.Stop()
		return nil, err
	}
	w := &clientWatch{reader: r, source: in, filter: f, revision: after, bookmarks: bookmarks, checkComplete: still}
	var end runtime.Object
	if bookmarks && opts.SendInitialEvents != nil && *opts.SendInitialEvents {
		end = r.resource.NewBookmark(after, true)
	}
	return watchstream.Start(ctx, func(ctx context.Context, events watchstream.Sender) {
		defer in.Stop()
		w.events = events
		if w.sendInitial(ctx, items, end) {
			items, end = nil, nil // a watch lasts an hour; its initial list must not stay in memory as long
			w.run(ctx)
		}
	}), nil
}

// clientWatch turns events of the store into events of one client's watch. It may be as slow as its client: the store keeps a window of events and never waits.
type clientWatch struct {
	reader        *ResourceReader
	source        objectstore.Watch
	filter        kinds.Filter
	revision      uint64 // the last revision sent to the client
	bookmarks     bool
	checkComplete func(revision uint64) error // returns why the watch must end: otherwise it would report the end of a scope as deletions
	events        watchstream.Sender
}

func (w *clientWatch) sendInitial(ctx context.Context, items []runtime.Object, end runtime.Object) bool {
	for _, obj := range items {
		if !w.events.Send(ctx, watch.Added, kinds.ShallowCopy(obj)) {
			return false
		}
	}
	return end == nil || w.events.Send(ctx, watch.Bookmark, end)
}

func (w *clientWatch) run(ctx context.Context) {
	every := w.reader.shared.bookmarkEvery
	for told := w.revision; ; {
		until, cancel := ctx, context.CancelFunc(func() {})
		if w.bookmarks {
			until, cancel = context.WithTimeout(ctx, every+rand.N(every))
		}
		ok := w.followEvents(ctx, until)
		cancel()
		if !ok {
			return
		}
		// Events that are in the source by now come before the bookmark.
		mark := w.reader.objects.Revision()
		if !w.followEvents(ctx, until) {
			return
		}
		w.revision = max(w.revision, mark)
		if w.revision == told {
			continue
		}
		told = w.revision
		if !w.events.Send(ctx, watch.Bookmark, w.reader.resource.NewBookmark(told, false)) {
			return
		}
	}
}

// followEvents sends events until the time is up, and reports whether the watch continues.
func (w *clientWatch) followEvents(ctx, until context.Context) bool {
	for {
		event, err := w.source.Next(until)
		switch {
		case err == nil:
			if !w.handleEvent(ctx, event) {
				return false
			}
		case ctx.Err() != nil:
			return false
		case errors.Is(err, store.ErrGone):
			w.events.SendError(ctx, apierrors.NewResourceExpired("this watch fell too far behind: list again"))
			return false
		default:
			return true
		}
	}
}

// handleEvent sends one change through this watch's filter. It reports whether the watch continues.
func (w *clientWatch) handleEvent(ctx context.Context, event store.Event) bool {
	w.revision = event.Entry.Revision
	if err := w.checkComplete(event.Entry.Revision); err != nil {
		w.events.SendError(ctx, err)
		return false
	}
	if !w.filter.MayMatch(event.Entry.Key.Namespace, event.Entry.Key.Name) {
		return true
	}
	kind, obj, err := w.translateEvent(event)
	if err != nil {
		w.events.SendError(ctx, apierrors.NewInternalError(err))
		return false
	}
	return kind == "" || w.events.Send(ctx, kind, obj)
}

// translateEvent returns the event that a change causes through the filter: an object that no longer matches is deleted.
// The type is "" if the filter hides the change.
func (w *clientWatch) translateEvent(event store.Event) (watch.EventType, runtime.Object, error) {
	var last, next runtime.Object
	var err error
	if event.Type != store.Deleted {
		if next, _, err = w.reader.resource.Decode(event.Entry); err != nil {
			return "", nil, err
		}
		if !w.filter.Matches(next) {
			next = nil
		}
	}
	if event.Prev != nil && (next == nil || w.filter.NeedsObject()) {
		if last, _, err = w.reader.resource.Decode(*event.Prev); err != nil {
			return "", nil, err
		}
		if !w.filter.Matches(last) {
			last = nil
		}
	}
	switch {
	case next != nil && event.Type == store.Modified && (last != nil || !w.filter.NeedsObject()):
		return watch.Modified, next, nil
	case next != nil:
		return watch.Added, next, nil
	case last != nil:
		m, err := meta.Accessor(last)
		if err != nil {
			return "", nil, err
		}
		// A deletion is an event of its own: its version is the deletion's, or a client would resume before it.
		m.SetResourceVersion(kinds.LocalVersion(event.Entry.Revision))
		return watch.Deleted, last, nil
	default:
		return "", nil, nil
	}
}
