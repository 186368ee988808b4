package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/frond-edge/frond/api/wire"
)

// Leases and events change all the time, and an old one is of no use to anybody: a leader that was is worse than none known. To keep
// them in the store would cost a synced write for each renewal, so a watch of them is relayed: the cloud is asked for what comes
// next, with the program's own token, again and again. Kubernetes judges each question. Without a link there is nothing to tell.

const (
	// relayWait is how long the cloud may wait for a change before it answers all the same; relayFirstWait, that it may watch at all.
	relayWait, relayFirstWait = 18 * time.Second, 50 * time.Millisecond
	// relayTimeout bounds one question; streams.WatchCallTimeout is sooner.
	relayTimeout = 30 * time.Second
	// relayRetryWindow is for how long a watch is kept through questions that were not answered: a short cut ends no watch.
	relayRetryWindow = 30 * time.Second
	// relayBackoff, at most relayMaxBackoff, is between two questions if one told nothing before its time, twice as long each time.
	relayBackoff, relayMaxBackoff = 200 * time.Millisecond, 5 * time.Second
	// maxRelays is how many watches of a gateway are relayed. The cloud serves twice as many of one node: a question that nobody waits for
	// any more keeps its place until its time is over.
	maxRelays = 32
	// relayPageSize is how many objects the list that a watch begins with asks for at a time, at most.
	relayPageSize = 500
	// defaultReplyBudget is what the link is believed to take at a time if nothing is known. All relays share it, as the answers of all may
	// come at once; minReplyBudget is one event.
	defaultReplyBudget, minReplyBudget = 32 << 10, 2 << 10
	// defaultObjectBytes is about how long an object of a list is before one has been seen: an event.
	defaultObjectBytes = 2 << 10
)

// isRelayed says whether watches of programs that are not the node are relayed.
func (e *endpoint) isRelayed() bool { return e.untrusted && e.resource.placement == inMemory }

// startRelay begins a relayed watch. Its error is a status: Kubernetes' own, or that the cloud cannot be asked.
func (e *endpoint) startRelay(ctx context.Context, opts *metainternalversion.ListOptions) (watch.Interface, error) {
	if !e.server.isOnline() {
		return nil, newUnreachableError(wire.ErrOffline)
	}
	leave, err := e.server.limits.admitRelay(callerOf(ctx))
	if err != nil {
		return nil, err
	}
	select {
	case e.server.relaySlots <- struct{}{}:
	default:
		leave()
		return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d watches of this gateway are relayed already", maxRelays), retryAfterSeconds)
	}
	free := sync.OnceFunc(func() {
		<-e.server.relaySlots
		leave()
	})
	w := &relayedWatch{
		endpoint: e, path: e.resource.cloudPath(wire.Key{Namespace: request.NamespaceValue(ctx)}), query: relayQuery(opts),
		version: opts.ResourceVersion, bookmarks: opts.AllowWatchBookmarks, objectBytes: defaultObjectBytes, out: make(chan watch.Event),
	}
	if n, err := strconv.ParseUint(w.version, 10, 64); err == nil && n >= localVersionBase {
		free()
		return nil, apierrors.NewResourceExpired("the resource version is the gateway's own, and the cloud's is wanted: list again")
	}
	first, next, err := w.fetchInitial(ctx, opts)
	if err != nil {
		free()
		return nil, err
	}
	ctx, w.cancel = context.WithCancel(ctx)
	w.done.Go(func() {
		defer free()
		defer close(w.out)
		if w.sendList(ctx, first) {
			first = nil // its memory is free while the watch goes on
			w.run(ctx, next)
		}
	})
	return w, nil
}

// fetchInitial asks for the first page of what the watch begins with, if that is wanted, and for what came next: Kubernetes says here what
// it has against it.
func (w *relayedWatch) fetchInitial(ctx context.Context, opts *metainternalversion.ListOptions) (first, next []watch.Event, err error) {
	known := w.version != "" && w.version != "0"
	initial := !known
	if opts.SendInitialEvents != nil {
		initial = *opts.SendInitialEvents
		w.bookmarkDue = initial && w.bookmarks
	}
	if initial || !known {
		most := relayPageSize
		if !initial {
			most = 1 // only the version is wanted
		}
		if first, err = w.fetchPage(ctx, most); err != nil {
			return nil, nil, err
		}
		if !initial {
			first, w.continueToken = nil, ""
		}
	}
	next, err = w.fetchChanges(ctx, relayFirstWait)
	return first, next, err
}

func relayQuery(opts *metainternalversion.ListOptions) url.Values {
	query := url.Values{}
	if opts.LabelSelector != nil && !opts.LabelSelector.Empty() {
		query.Set("labelSelector", opts.LabelSelector.String())
	}
	if opts.FieldSelector != nil && !opts.FieldSelector.Empty() {
		query.Set("fieldSelector", opts.FieldSelector.String())
	}
	return query
}

// relayedWatch is one such watch. Its goroutine ends with Stop, which waits for it.
type relayedWatch struct {
	endpoint      *endpoint
	path          string
	query         url.Values
	version       string // the cloud's, of the last change that was answered
	bookmarks     bool
	bookmarkDue   bool   // a bookmark ends the list that the watch begins with
	continueToken string // where the list goes on; "" with its last page
	objectBytes   int    // bytes that an object of it is long, about
	listVersion   string // the list's version
	cancel        context.CancelFunc
	out           chan watch.Event // closed when the watch has ended
	done          sync.WaitGroup
}

func (w *relayedWatch) ResultChan() <-chan watch.Event { return w.out }

func (w *relayedWatch) Stop() {
	w.cancel()
	w.done.Wait()
}

// run passes on what the cloud says until somebody ends it.
func (w *relayedWatch) run(ctx context.Context, first []watch.Event) {
	pause := relayBackoff
	for events := first; w.sendEvents(ctx, events); {
		begun, version := time.Now(), w.version
		var ok bool
		if events, ok = w.askUntilAnswered(ctx, func() ([]watch.Event, error) { return w.fetchChanges(ctx, relayWait) }); !ok {
			return
		}
		if w.version != version || time.Since(begun) > relayWait/2 {
			pause = relayBackoff
			continue
		}
		sleepJittered(ctx, pause)
		pause = min(2*pause, relayMaxBackoff)
	}
}

// askUntilAnswered repeats a question until it is answered, and says whether the watch goes on. One whose token has expired ends without a
// word: the program comes back with its newer one.
func (w *relayedWatch) askUntilAnswered(ctx context.Context, question func() ([]watch.Event, error)) (events []watch.Event, ok bool) {
	begun := time.Now()
	for pause := relayBackoff; ; pause = min(2*pause, relayMaxBackoff) {
		events, err := question()
		switch {
		case ctx.Err() != nil || apierrors.IsUnauthorized(err):
			return nil, false
		case err == nil:
			return events, true
		case !isTransient(err) || time.Since(begun) > relayRetryWindow:
			w.sendError(ctx, err)
			return nil, false
		}
		sleepJittered(ctx, pause)
	}
}

// sleepJittered waits for a pause, and as much again at random.
func sleepJittered(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause + rand.N(pause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// isTransient says whether the same question may be answered later.
func isTransient(err error) bool {
	return isOffline(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
}

func (w *relayedWatch) sendEvents(ctx context.Context, events []watch.Event) bool {
	for _, event := range events {
		if event.Type == watch.Bookmark && !w.bookmarks {
			continue
		}
		select {
		case w.out <- event:
		case <-ctx.Done():
			return false
		}
		if event.Type == watch.Error {
			return false
		}
	}
	return ctx.Err() == nil
}

func (w *relayedWatch) sendError(ctx context.Context, err error) {
	status := apierrors.NewInternalError(err).Status()
	if known := apierrors.APIStatus(nil); errors.As(err, &known) {
		status = known.Status()
	}
	w.sendEvents(ctx, []watch.Event{{Type: watch.Error, Object: &status}})
}

// sendList passes on the list that the watch begins with, page by page, and says whether the watch goes on.
func (w *relayedWatch) sendList(ctx context.Context, page []watch.Event) bool {
	for w.sendEvents(ctx, page) {
		if w.continueToken == "" {
			return !w.bookmarkDue || w.sendEvents(ctx, []watch.Event{w.listEndBookmark()})
		}
		var ok bool
		if page, ok = w.askUntilAnswered(ctx, func() ([]watch.Event, error) { return w.fetchPage(ctx, relayPageSize) }); !ok {
			return false
		}
	}
	return false
}

// listEndBookmark is the bookmark that says that all was told that there was.
func (w *relayedWatch) listEndBookmark() watch.Event {
	mark := w.endpoint.resource.newBookmark(0, true)
	if m, err := meta.Accessor(mark); err == nil {
		m.SetResourceVersion(w.listVersion)
	}
	return watch.Event{Type: watch.Bookmark, Object: mark}
}

// replyBudget is what the link takes at a time, and this relay's share of it.
func (w *relayedWatch) replyBudget() (share, all int) {
	if w.endpoint.server.cfg.LinkBudget != nil {
		all = w.endpoint.server.cfg.LinkBudget()
	}
	if all == 0 {
		all = defaultReplyBudget
	}
	return max(all/max(len(w.endpoint.server.relaySlots), 1), minReplyBudget), all
}

// fetchPage asks for the next page of the list that the watch begins with, of most objects at most and no longer than the link takes;
// the first one sets the version to go on from.
func (w *relayedWatch) fetchPage(ctx context.Context, most int) ([]watch.Event, error) {
	share, all := w.replyBudget()
	limit := min(max(share/4*3/w.objectBytes, 1), most) // base64 makes it a third longer
	list, size, err := w.requestPage(ctx, share, limit)
	for apierrors.IsRequestEntityTooLargeError(err) && limit > 1 {
		limit /= 2
		list, size, err = w.requestPage(ctx, share, limit)
	}
	if apierrors.IsRequestEntityTooLargeError(err) && share < all {
		list, size, err = w.requestPage(ctx, all, limit)
	}
	if err != nil {
		return nil, err
	}
	w.objectBytes = max(size/max(meta.LenList(list), 1), 1)
	return w.pageEvents(list)
}

// requestPage asks for so many objects of the list, and returns how many bytes the answer has.
func (w *relayedWatch) requestPage(ctx context.Context, take, limit int) (list runtime.Object, size int, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if w.continueToken != "" {
		query.Set("continue", w.continueToken)
	}
	maps.Copy(query, w.query)
	request := wire.KubeRequest{Method: http.MethodGet, Path: w.path, Query: query.Encode(), Accept: runtime.ContentTypeJSON, MaxBytes: take}
	reply, err := w.endpoint.server.callCloud(ctx, request)
	switch {
	case err != nil:
		return nil, 0, err
	case reply.Code >= http.StatusBadRequest:
		return nil, 0, replyError(reply)
	}
	list = w.endpoint.resource.list()
	if err := json.Unmarshal(reply.Body, list); err != nil {
		return nil, 0, newUnreachableError(fmt.Errorf("decode reply: %w", err))
	}
	return list, len(reply.Body), nil
}

// pageEvents makes events of a page, and notes where the list goes on.
func (w *relayedWatch) pageEvents(list runtime.Object) ([]watch.Event, error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	events := make([]watch.Event, 0, meta.LenList(list))
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		obj.GetObjectKind().SetGroupVersionKind(w.endpoint.resource.gvk())
		events = append(events, watch.Event{Type: watch.Added, Object: obj})
		return nil
	})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if w.listVersion == "" {
		w.listVersion, w.version = m.GetResourceVersion(), m.GetResourceVersion()
	}
	w.continueToken = m.GetContinue()
	return events, nil
}

// fetchChanges asks the cloud once for what came after the version, and moves it if the whole answer could be read.
func (w *relayedWatch) fetchChanges(ctx context.Context, wait time.Duration) ([]watch.Event, error) {
	w.query.Set("resourceVersion", w.version)
	share, all := w.replyBudget()
	ask := wire.KubeRequest{Method: http.MethodGet, Path: w.path, Query: w.query.Encode(), Wait: wait.Milliseconds(), MaxBytes: share}
	w.query.Del("resourceVersion")
	reply, err := w.endpoint.server.sendRequest(ctx, ask, relayTimeout)
	if err == nil && reply.Code == http.StatusRequestEntityTooLarge && share < all {
		ask.MaxBytes = all
		reply, err = w.endpoint.server.sendRequest(ctx, ask, relayTimeout)
	}
	if err != nil {
		return nil, err
	}
	if reply.Code != http.StatusOK {
		return nil, replyError(reply)
	}
	var events []watch.Event
	version := w.version
	for from := json.NewDecoder(bytes.NewReader(reply.Body)); ; {
		var frame metav1.WatchEvent
		if err := from.Decode(&frame); errors.Is(err, io.EOF) {
			w.version = version
			return events, nil
		} else if err != nil {
			return nil, newUnreachableError(fmt.Errorf("decode change: %w", err))
		}
		event := watch.Event{Type: watch.EventType(frame.Type), Object: w.endpoint.resource.object()}
		if event.Type == watch.Error {
			event.Object = &metav1.Status{}
		}
		if err := json.Unmarshal(frame.Object.Raw, event.Object); err != nil {
			return nil, newUnreachableError(fmt.Errorf("decode change: %w", err))
		}
		events = append(events, event)
		if event.Type != watch.Error {
			version = versionOf(event.Object)
		}
	}
}
