package relay

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/watchstream"
)

const (
	// The cloud is polled for a watched request soon, as a healthy signer signs within a second, and then less and less often.
	csrPollFirst, csrPollMax = 250 * time.Millisecond, 20 * time.Second
	csrPollFactor            = 1.5
)

// CSRWatcher lets a kubelet wait for its certificate: a watch of one CertificateSigningRequest, by name. The gateway stores none, and a
// call carries no watch, so the cloud is polled for it while the link is up.
type CSRWatcher struct {
	// Resource describes the kind.
	Resource *kinds.Resource

	cloud  *cloudcall.Client
	online func() bool
}

// NewCSRWatcher creates a CSRWatcher. online reports whether the cloud can be asked.
func NewCSRWatcher(cloud *cloudcall.Client, online func() bool) *CSRWatcher {
	r := &kinds.Resource{
		GVR:  certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"),
		Kind: "CertificateSigningRequest", ShortNames: []string{"csr"},
	}
	r.SetType()
	return &CSRWatcher{Resource: r, cloud: cloud, online: online}
}

// Watch starts with the present state, also for a client that has it: it is one object, and sending it twice is harmless.
func (r *CSRWatcher) Watch(ctx context.Context, opts *metainternalversion.ListOptions) (watch.Interface, error) {
	name, ok := "", false
	if opts != nil && opts.FieldSelector != nil {
		name, ok = opts.FieldSelector.RequiresExactMatch(kinds.FieldName)
	}
	if !ok {
		return nil, apierrors.NewMethodNotSupported(r.Resource.GVR.GroupResource(), "watch of more than one name")
	}
	a := &csrWatch{
		watcher: r, key: r.Resource.ObjectKey("", name),
		bookmarkDue: opts.AllowWatchBookmarks && opts.SendInitialEvents != nil && *opts.SendInitialEvents,
	}
	return watchstream.Start(ctx, func(ctx context.Context, events watchstream.Sender) {
		a.events = events
		a.pollUntilDone(ctx)
	}), nil
}

// csrWatch is one watch of a CertificateSigningRequest.
type csrWatch struct {
	watcher     *CSRWatcher
	key         wire.Key
	bookmarkDue bool // a bookmark is due after the first state
	last        runtime.Object
	events      watchstream.Sender
}

func (a *csrWatch) pollUntilDone(ctx context.Context) {
	for pause := csrPollFirst; ; {
		if a.watcher.online() && !a.pollOnce(ctx) {
			return
		}
		timer := time.NewTimer(pause + rand.N(pause/4+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(time.Duration(csrPollFactor*float64(pause)), csrPollMax)
	}
}

// pollOnce polls the cloud once and sends a changed state. It reports whether the watch continues.
func (a *csrWatch) pollOnce(ctx context.Context) bool {
	obj := a.watcher.Resource.Object()
	err := a.watcher.cloud.Object(ctx, http.MethodGet, a.watcher.Resource.CloudPath(a.key), nil, obj)
	switch {
	case err == nil:
		return a.sendState(ctx, obj)
	case apierrors.IsNotFound(err) && a.last != nil:
		a.events.Send(ctx, watch.Deleted, a.last)
		return false
	case apierrors.IsNotFound(err) && !a.bookmarkDue:
		// The client may know it from a list; only another list shows that it no longer exists.
		a.events.SendError(ctx, apierrors.NewResourceExpired("the request is gone: list again"))
		return false
	}
	return true // unreachable, or refused for now
}

// sendState sends a state that differs from the last one.
func (a *csrWatch) sendState(ctx context.Context, obj runtime.Object) bool {
	kind := watch.Modified
	if a.last == nil {
		kind = watch.Added
	} else if versionOf(a.last) == versionOf(obj) {
		return true
	}
	a.last = obj
	if !a.events.Send(ctx, kind, obj.DeepCopyObject()) {
		return false
	}
	if !a.bookmarkDue {
		return true
	}
	a.bookmarkDue = false
	return a.events.Send(ctx, watch.Bookmark, endBookmark(a.watcher.Resource, versionOf(obj)))
}

// endBookmark returns the bookmark that ends the initial events of a watch, at a version of the cloud.
func endBookmark(r *kinds.Resource, version string) runtime.Object {
	mark := r.NewBookmark(0, true)
	if m, err := meta.Accessor(mark); err == nil {
		m.SetResourceVersion(version)
	}
	return mark
}

func versionOf(obj runtime.Object) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}
