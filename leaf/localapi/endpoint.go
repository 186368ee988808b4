package localapi

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// endpoint is the REST storage of one resource, or of one of its subresources.
type endpoint struct {
	s           *Server
	r           *resource
	objects     objects
	subresource string
	// follows: it is for programs that are not the node, and tells of a kind what the cloud keeps complete here.
	follows bool
}

func (e *endpoint) New() runtime.Object     { return e.r.object() }
func (e *endpoint) NewList() runtime.Object { return e.r.list() }
func (e *endpoint) Destroy()                {}
func (e *endpoint) NamespaceScoped() bool   { return e.r.namespaced }
func (e *endpoint) GetSingularName() string { return e.r.singular }
func (e *endpoint) notFound(name string) error {
	return apierrors.NewNotFound(e.r.gvr.GroupResource(), name)
}

// ConvertToTable is what kubectl's output is made of.
func (e *endpoint) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	o, _ := options.(*metav1.TableOptions)
	return e.r.tableOf(obj, o == nil || !o.NoHeaders)
}

// Get answers from the store, and for what is not there asks who can know.
func (e *endpoint) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	key := e.r.key(request.NamespaceValue(ctx), name)
	if e.follows {
		return e.find(ctx, key)
	}
	entry, err := e.objects.Get(key)
	switch {
	case err == nil:
		if e.r.knowledge == partial {
			e.s.absences.forget(ctx, key)
		}
		obj, _, err := e.r.decode(entry)
		return obj, err
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	case e.provesAbsence(key):
		return nil, e.notFound(name)
	}
	return e.fetch(ctx, key)
}

// provesAbsence says whether an object that is not in the store does not exist.
func (e *endpoint) provesAbsence(key wire.Key) bool {
	switch {
	case e.r.home == inMemory:
		return true
	case e.r.knowledge != own:
		return false
	case !e.r.namespaced && key.Name != e.s.cfg.Node:
		return false // another node: nobody tells us about it
	}
	return e.s.attached()
}

// fetch asks the cloud for an object. It remembers the answer "there is none", so that what is optional stays optional
// when the link is down later.
func (e *endpoint) fetch(ctx context.Context, key wire.Key) (runtime.Object, error) {
	obj := e.r.object()
	err := e.s.call(ctx, "GET", e.r.path(key), nil, obj)
	switch {
	case err == nil:
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		m.SetManagedFields(nil)
		// The cloud's version means nothing here; the present revision lets a watch from it see the delivery.
		m.SetResourceVersion(localVersion(e.objects.Revision()))
		if e.r.adorn != nil {
			e.r.adorn(obj)
		}
		return obj, nil
	case apierrors.IsNotFound(err) && e.r.knowledge == partial:
		e.s.absences.remember(ctx, key)
	case isOffline(err) && e.s.absences.known(key):
		return nil, e.notFound(key.Name)
	}
	return nil, err
}

// List answers from the store.
func (e *endpoint) List(ctx context.Context, opts *metainternalversion.ListOptions) (runtime.Object, error) {
	if opts != nil && opts.Continue != "" {
		return e.nextPage(ctx, opts)
	}
	f := newFilter(e.r, opts)
	after, err := e.start(opts)
	if err != nil {
		return nil, err
	}
	if opts != nil && opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact && after != e.objects.Revision() {
		return nil, apierrors.NewResourceExpired("the gateway keeps no old versions: list the present one")
	}
	items, revision, err := e.snapshot(ctx, &f)
	if err != nil {
		return nil, err
	}
	if err := e.still(ctx, opts); err != nil {
		return nil, err
	}
	return e.firstPage(ctx, opts, items, revision)
}

// snapshot returns what matches now and the revision at which it does. The objects are others' too: see view.
func (e *endpoint) snapshot(ctx context.Context, f *filter) ([]runtime.Object, uint64, error) {
	namespace := request.NamespaceValue(ctx)
	extra, err := e.ready(ctx, namespace, f)
	if err != nil {
		return nil, 0, err
	}
	done, err := e.s.read(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	entries, revision := e.objects.List(e.r.gvr.Group, e.r.gvr.Resource, namespace)
	items := make([]runtime.Object, 0, len(entries))
	for _, entry := range entries {
		if !f.mayMatch(entry.Key.Namespace, entry.Key.Name) {
			continue
		}
		obj, err := e.r.view(entry)
		if err != nil {
			return nil, 0, err
		}
		if f.matches(obj) {
			items = append(items, obj)
		}
	}
	if len(items) == 0 && extra != nil && f.matches(extra) {
		items = append(items, extra)
	}
	return items, revision, nil
}

// ready waits until a list can tell the truth: until the store has attached, or for a list by name of what is delivered
// only as far as pods need it, until that object is known one way or the other. It returns the object if the cloud gave it.
func (e *endpoint) ready(ctx context.Context, namespace string, f *filter) (runtime.Object, error) {
	if e.r.home == inMemory || e.follows { // what is followed has been waited for before
		return nil, nil
	}
	if e.r.knowledge == partial {
		if namespace == "" {
			namespace = f.namespace
		}
		if f.name != "" && (!e.r.namespaced || namespace != "") {
			return e.await(ctx, e.r.key(namespace, f.name))
		}
	}
	if !e.r.namespaced && e.r.knowledge == own {
		// The node itself may be known before anything was delivered: it made itself.
		if _, err := e.objects.Get(e.r.key("", e.s.cfg.Node)); err == nil {
			return nil, nil
		}
	}
	if !e.s.waitAttached(ctx) {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf(
			"%s are not known: this gateway has not been in step with the cloud since its store was made or found damaged", e.r.gvr.Resource))
	}
	if e.r.optional {
		return nil, e.s.deliveredKind(e.r)
	}
	return nil, nil
}

// still makes sure that what was read is all there is: a scope may end at any time, its marker before its objects.
func (e *endpoint) still(ctx context.Context, opts *metainternalversion.ListOptions) error {
	if e.follows && !e.holds(request.NamespaceValue(ctx), opts) {
		return apierrors.NewResourceExpired("the cloud has stopped sending " + e.r.gvr.Resource + " to this gateway: list again")
	}
	return nil
}

// start reads a list's or watch's resourceVersion. One from the future belongs to a store that is gone.
func (e *endpoint) start(opts *metainternalversion.ListOptions) (uint64, error) {
	if opts == nil {
		return 0, nil
	}
	after, err := revisionOf(opts.ResourceVersion)
	if err != nil {
		return 0, err
	}
	if after > e.objects.Revision() {
		return 0, apierrors.NewResourceExpired("the resource version is newer than this store: list again")
	}
	return after, nil
}
