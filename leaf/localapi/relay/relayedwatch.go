package relay

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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/localapi/watchstream"
)

const (
	// relayWait is how long the cloud may wait for a change before it answers anyway; relayFirstWait is that wait of the
	// first request, which shows whether the watch is allowed.
	relayWait, relayFirstWait = 18 * time.Second, 50 * time.Millisecond
	// relayTimeout limits one request; call.WatchCallTimeout is shorter.
	relayTimeout = 30 * time.Second
	// relayRetryWindow is how long a watch survives unanswered requests: a short link cut ends no watch.
	relayRetryWindow = 30 * time.Second
	// relayBackoff, at most relayMaxBackoff, is the pause after a request that returned early without changes. It doubles each time.
	relayBackoff, relayMaxBackoff = 200 * time.Millisecond, 5 * time.Second
	// relayPageSize is the largest page of the initial list of a watch, in objects.
	relayPageSize = 500
	// defaultReplyBudget is the assumed number of bytes that the link accepts at a time if it is not known. All relays
	// share it, as all their answers may arrive at once; minReplyBudget is one event.
	defaultReplyBudget, minReplyBudget = 32 << 10, 2 << 10
	// defaultObjectBytes is the assumed size of a list's object before the first one has arrived: an event.
	defaultObjectBytes = 2 << 10
)

// fetchInitial requests the first page of the initial list, if it is wanted, and the next changes. Kubernetes refuses the
// watch here if it is not allowed.
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
			most = 1 // only the version is needed
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

// relayedWatch is one relayed watch.
type relayedWatch struct {
	relays        *Relays
	resource      *kinds.Resource
	path          string
	query         url.Values
	version       string // the cloud's version of the last answered change
	bookmarks     bool
	bookmarkDue   bool   // a bookmark ends the initial list
	continueToken string // position of the next page; "" after the last page
	objectBytes   int    // approximate bytes per object of the list
	listVersion   string // the list's version
	out           watchstream.Sender
}

// run forwards the cloud's events until the watch ends.
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

// askUntilAnswered repeats a request until it is answered, and reports whether the watch continues. A watch whose token has
// expired ends without an error: the program reconnects with its newer token.
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
			w.out.SendError(ctx, err)
			return nil, false
		}
		sleepJittered(ctx, pause)
	}
}

// sleepJittered waits for a pause plus a random time of up to the same length.
func sleepJittered(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause + rand.N(pause))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// isTransient reports whether the same request may succeed later.
func isTransient(err error) bool {
	return respond.IsOffline(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
}

func (w *relayedWatch) sendEvents(ctx context.Context, events []watch.Event) bool {
	for _, event := range events {
		if event.Type == watch.Bookmark && !w.bookmarks {
			continue
		}
		if !w.out.Send(ctx, event.Type, event.Object) || event.Type == watch.Error {
			return false
		}
	}
	return ctx.Err() == nil
}

// sendList sends the initial list, page by page, and reports whether the watch continues.
func (w *relayedWatch) sendList(ctx context.Context, page []watch.Event) bool {
	for w.sendEvents(ctx, page) {
		if w.continueToken == "" {
			return !w.bookmarkDue || w.out.Send(ctx, watch.Bookmark, endBookmark(w.resource, w.listVersion))
		}
		var ok bool
		if page, ok = w.askUntilAnswered(ctx, func() ([]watch.Event, error) { return w.fetchPage(ctx, relayPageSize) }); !ok {
			return false
		}
	}
	return false
}

// replyBudget returns the number of bytes that the link accepts at a time, and this relay's share.
func (w *relayedWatch) replyBudget() (share, all int) {
	if w.relays.linkBudget != nil {
		all = w.relays.linkBudget()
	}
	if all == 0 {
		all = defaultReplyBudget
	}
	return max(all/max(w.relays.Open(), 1), minReplyBudget), all
}

// fetchPage requests the next page of the initial list, of at most most objects and within the link's budget. The first
// page sets the version at which the watch continues.
func (w *relayedWatch) fetchPage(ctx context.Context, most int) ([]watch.Event, error) {
	share, all := w.replyBudget()
	limit := min(max(share/4*3/w.objectBytes, 1), most) // base64 adds a third
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

// requestPage requests up to limit objects of the list, and returns the size of the answer in bytes.
func (w *relayedWatch) requestPage(ctx context.Context, take, limit int) (list runtime.Object, size int, err error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if w.continueToken != "" {
		query.Set("continue", w.continueToken)
	}
	maps.Copy(query, w.query)
	request := wire.KubeRequest{Method: http.MethodGet, Path: w.path, Query: query.Encode(), Accept: runtime.ContentTypeJSON, MaxBytes: take}
	reply, err := w.relays.cloud.Call(ctx, request)
	switch {
	case err != nil:
		return nil, 0, err
	case reply.Code >= http.StatusBadRequest:
		return nil, 0, respond.StatusOf(reply)
	}
	list = w.resource.List()
	if err := json.Unmarshal(reply.Body, list); err != nil {
		return nil, 0, respond.Unreachable(fmt.Errorf("decode reply: %w", err))
	}
	return list, len(reply.Body), nil
}

// pageEvents returns the events of a page, and saves the position of the next page.
func (w *relayedWatch) pageEvents(list runtime.Object) ([]watch.Event, error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	events := make([]watch.Event, 0, meta.LenList(list))
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		obj.GetObjectKind().SetGroupVersionKind(w.resource.GVK())
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

// fetchChanges asks the cloud once for the changes after the version, and advances the version if the whole answer could be read.
func (w *relayedWatch) fetchChanges(ctx context.Context, wait time.Duration) ([]watch.Event, error) {
	w.query.Set("resourceVersion", w.version)
	share, all := w.replyBudget()
	ask := wire.KubeRequest{Method: http.MethodGet, Path: w.path, Query: w.query.Encode(), Wait: wait.Milliseconds(), MaxBytes: share}
	w.query.Del("resourceVersion")
	reply, err := w.relays.cloud.Send(ctx, ask, relayTimeout)
	if err == nil && reply.Code == http.StatusRequestEntityTooLarge && share < all {
		ask.MaxBytes = all
		reply, err = w.relays.cloud.Send(ctx, ask, relayTimeout)
	}
	if err != nil {
		return nil, err
	}
	if reply.Code != http.StatusOK {
		return nil, respond.StatusOf(reply)
	}
	var events []watch.Event
	version := w.version
	for from := json.NewDecoder(bytes.NewReader(reply.Body)); ; {
		var frame metav1.WatchEvent
		if err := from.Decode(&frame); errors.Is(err, io.EOF) {
			w.version = version
			return events, nil
		} else if err != nil {
			return nil, respond.Unreachable(fmt.Errorf("decode change: %w", err))
		}
		event := watch.Event{Type: watch.EventType(frame.Type), Object: w.resource.Object()}
		if event.Type == watch.Error {
			event.Object = &metav1.Status{}
		}
		if err := json.Unmarshal(frame.Object.Raw, event.Object); err != nil {
			return nil, respond.Unreachable(fmt.Errorf("decode change: %w", err))
		}
		events = append(events, event)
		if event.Type != watch.Error {
			version = versionOf(event.Object)
		}
	}
}
