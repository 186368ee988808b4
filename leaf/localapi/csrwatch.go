package localapi

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/handlers"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

const (
	// The cloud is polled for a watched request soon, as a healthy signer signs within a second, and then less and less often.
	csrPollFirst, csrPollMax = 250 * time.Millisecond, 20 * time.Second
	csrPollFactor            = 1.5
)

func csrResource() schema.GroupVersionResource {
	return certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
}

// certificates lets a kubelet wait for its certificate: a watch of one CertificateSigningRequest, by name. The gateway
// stores none, and a call carries no watch, so the cloud is polled for it while the link is up.
type certificates struct {
	*endpoint
	firstPoll time.Duration // before the second poll
}

func newCertificates(s *Server) certificates {
	return certificates{firstPoll: csrPollFirst, endpoint: &endpoint{server: s, resource: &kinds.Resource{
		GVR: csrResource(), Kind: "CertificateSigningRequest", Singular: "certificatesigningrequest", ShortNames: []string{"csr"},
		Object: func() runtime.Object { return &certificatesv1.CertificateSigningRequest{} },
		List:   func() runtime.Object { return &certificatesv1.CertificateSigningRequestList{} },
	}}}
}

// serveWatch serves a watch of a request.
func (r certificates) serveWatch(w http.ResponseWriter, req *http.Request) {
	scope, err := newScope(r.endpoint, r.server.cfg.MaxRequestBytes)
	if err != nil {
		respond.Error(w, req, apierrors.NewInternalError(err))
		return
	}
	handlers.ListResource(r, r, scope, true, minWatchTime)(w, req)
}

// Watch starts with the present state, also for a client that has it: it is one object, and sending it twice is harmless.
func (r certificates) Watch(ctx context.Context, opts *metainternalversion.ListOptions) (watch.Interface, error) {
	name, ok := "", false
	if opts != nil && opts.FieldSelector != nil {
		name, ok = opts.FieldSelector.RequiresExactMatch(kinds.FieldName)
	}
	if !ok {
		return nil, apierrors.NewMethodNotSupported(r.resource.GVR.GroupResource(), "watch of more than one name")
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &csrWatch{
		certificates: r, key: r.resource.ObjectKey("", name), cancel: cancel, out: make(chan watch.Event),
		bookmarkDue: opts.AllowWatchBookmarks && opts.SendInitialEvents != nil && *opts.SendInitialEvents,
	}
	a.done.Go(func() {
		defer close(a.out)
		a.pollUntilDone(ctx)
	})
	return a, nil
}

// csrWatch is one watch of a CertificateSigningRequest. Its goroutine ends with Stop, which waits for it.
type csrWatch struct {
	certificates
	key         wire.Key
	bookmarkDue bool // a bookmark is due after the first state
	last        runtime.Object
	cancel      context.CancelFunc
	out         chan watch.Event // closed when the watch has ended
	done        sync.WaitGroup
}

func (a *csrWatch) ResultChan() <-chan watch.Event { return a.out }

func (a *csrWatch) Stop() {
	a.cancel()
	a.done.Wait()
}

func (a *csrWatch) pollUntilDone(ctx context.Context) {
	for pause := a.firstPoll; ; {
		if a.server.isOnline() && !a.pollOnce(ctx) {
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
	obj := a.resource.Object()
	err := a.server.cloud.Object(ctx, http.MethodGet, a.resource.CloudPath(a.key), nil, obj)
	switch {
	case err == nil:
		return a.sendState(ctx, obj)
	case apierrors.IsNotFound(err) && a.last != nil:
		a.sendEvent(ctx, watch.Deleted, a.last)
		return false
	case apierrors.IsNotFound(err) && !a.bookmarkDue:
		// The client may know it from a list; only another list shows that it no longer exists.
		status := apierrors.NewResourceExpired("the request is gone: list again").Status()
		a.sendEvent(ctx, watch.Error, &status)
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
	if !a.sendEvent(ctx, kind, obj.DeepCopyObject()) {
		return false
	}
	if !a.bookmarkDue {
		return true
	}
	a.bookmarkDue = false
	end := a.resource.NewBookmark(0, true)
	if m, err := meta.Accessor(end); err == nil {
		m.SetResourceVersion(versionOf(obj))
	}
	return a.sendEvent(ctx, watch.Bookmark, end)
}

func (a *csrWatch) sendEvent(ctx context.Context, kind watch.EventType, obj runtime.Object) bool {
	select {
	case a.out <- watch.Event{Type: kind, Object: obj}:
		return true
	case <-ctx.Done():
		return false
	}
}

func versionOf(obj runtime.Object) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}
