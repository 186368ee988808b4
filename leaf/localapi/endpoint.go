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
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

// endpoint is the REST storage of one resource, or of one of its subresources.
type endpoint struct {
	server      *Server
	resource    *kinds.Resource
	objects     objectstore.Store
	subresource string
	// untrusted: the endpoint serves programs other than the node, and returns of a kind only what the cloud keeps complete here.
	untrusted bool
}

func (e *endpoint) New() runtime.Object     { return e.resource.Object() }
func (e *endpoint) NewList() runtime.Object { return e.resource.List() }
func (e *endpoint) Destroy()                {}
func (e *endpoint) NamespaceScoped() bool   { return e.resource.Namespaced }
func (e *endpoint) GetSingularName() string { return e.resource.Singular }
func (e *endpoint) notFound(name string) error {
	return apierrors.NewNotFound(e.resource.GVR.GroupResource(), name)
}

// ConvertToTable returns the table that kubectl prints.
func (e *endpoint) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	o, _ := options.(*metav1.TableOptions)
	return e.resource.BuildTable(obj, o == nil || !o.NoHeaders)
}

// Get answers from the store. For an object that is not stored it waits for the delivery or asks the cloud.
func (e *endpoint) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	key := e.resource.ObjectKey(request.NamespaceValue(ctx), name)
	if e.untrusted {
		return e.findObject(ctx, key)
	}
	entry, err := e.objects.Get(key)
	switch {
	case err == nil:
		if e.resource.Completeness == kinds.PartiallyHeld {
			e.server.absences.Remove(ctx, key)
		}
		obj, _, err := e.resource.Decode(entry)
		return obj, err
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	case e.provesAbsence(key):
		return nil, e.notFound(name)
	}
	return e.fetchFromCloud(ctx, key)
}

// provesAbsence reports whether an object that is not in the store does not exist.
func (e *endpoint) provesAbsence(key wire.Key) bool {
	switch {
	case e.resource.Placement == kinds.InMemory:
		return true
	case e.resource.Completeness != kinds.Authoritative:
		return false
	case !e.resource.Namespaced && key.Name != e.server.cfg.Node:
		return false // another node: the cloud does not send it
	}
	return e.server.isAttached()
}

// fetchFromCloud asks the cloud for an object. It remembers the answer "not found", so that an optional object stays
// optional when the link is down later.
func (e *endpoint) fetchFromCloud(ctx context.Context, key wire.Key) (runtime.Object, error) {
	obj := e.resource.Object()
	err := e.server.cloud.Object(ctx, "GET", e.resource.CloudPath(key), nil, obj)
	switch {
	case err == nil:
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		m.SetManagedFields(nil)
		// The cloud's version has no meaning here; with the present revision a watch from it sees the delivery.
		m.SetResourceVersion(kinds.LocalVersion(e.objects.Revision()))
		if e.resource.Decorate != nil {
			e.resource.Decorate(obj)
		}
		return obj, nil
	case apierrors.IsNotFound(err) && e.resource.Completeness == kinds.PartiallyHeld:
		e.server.absences.Add(ctx, key)
	case respond.IsOffline(err) && e.server.absences.IsKnown(key):
		return nil, e.notFound(key.Name)
	}
	return nil, err
}

// List answers from the store.
func (e *endpoint) List(ctx context.Context, opts *metainternalversion.ListOptions) (runtime.Object, error) {
	if opts != nil && opts.Continue != "" {
		return e.nextPage(ctx, opts)
	}
	f := kinds.NewFilter(e.resource, opts)
	after, err := e.startRevision(opts)
	if err != nil {
		return nil, err
	}
	if opts != nil && opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact && after != e.objects.Revision() {
		return nil, apierrors.NewResourceExpired("the gateway keeps no old versions: list the present one")
	}
	items, revision, err := e.listMatching(ctx, &f)
	if err != nil {
		return nil, err
	}
	if err := e.checkStillComplete(ctx, opts); err != nil {
		return nil, err
	}
	return e.firstPage(ctx, opts, items, revision)
}

// listMatching returns the matching objects and the revision at which they match. The objects are shared: see decodeShared.
func (e *endpoint) listMatching(ctx context.Context, f *kinds.Filter) ([]runtime.Object, uint64, error) {
	namespace := request.NamespaceValue(ctx)
	extra, err := e.waitComplete(ctx, namespace, f)
	if err != nil {
		return nil, 0, err
	}
	done, err := e.server.admitList(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	entries, revision := e.objects.List(e.resource.GVR.Group, e.resource.GVR.Resource, namespace)
	items := make([]runtime.Object, 0, len(entries))
	for _, entry := range entries {
		if !f.MayMatch(entry.Key.Namespace, entry.Key.Name) {
			continue
		}
		obj, err := e.resource.DecodeShared(entry)
		if err != nil {
			return nil, 0, err
		}
		if f.Matches(obj) {
			items = append(items, obj)
		}
	}
	if len(items) == 0 && extra != nil && f.Matches(extra) {
		items = append(items, extra)
	}
	return items, revision, nil
}

// waitComplete waits until a list is complete: until the store has attached. A list by name of a kind that is delivered
// only as far as pods need it waits until that object is known to exist or not. It returns the object if the cloud sent it.
func (e *endpoint) waitComplete(ctx context.Context, namespace string, f *kinds.Filter) (runtime.Object, error) {
	if e.resource.Placement == kinds.InMemory || e.untrusted { // a followed kind was waited for earlier
		return nil, nil
	}
	if e.resource.Completeness == kinds.PartiallyHeld {
		if namespace == "" {
			namespace = f.Namespace
		}
		if f.Name != "" && (!e.resource.Namespaced || namespace != "") {
			return e.waitForObject(ctx, e.resource.ObjectKey(namespace, f.Name))
		}
	}
	if !e.resource.Namespaced && e.resource.Completeness == kinds.Authoritative {
		// The node itself may be known before anything was delivered: it registered itself.
		if _, err := e.objects.Get(e.resource.ObjectKey("", e.server.cfg.Node)); err == nil {
			return nil, nil
		}
	}
	if !e.server.waitAttached(ctx) {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf(
			"%s are not known: this gateway has not been in step with the cloud since its store was made or found damaged", e.resource.GVR.Resource))
	}
	if e.resource.Optional {
		return nil, e.server.checkKindDelivered(e.resource)
	}
	return nil, nil
}

// checkStillComplete ensures that a list read everything: a scope may end at any time, and its marker goes before its objects.
func (e *endpoint) checkStillComplete(ctx context.Context, opts *metainternalversion.ListOptions) error {
	if e.untrusted && !e.holdsAll(request.NamespaceValue(ctx), opts) {
		return apierrors.NewResourceExpired("the cloud has stopped sending " + e.resource.GVR.Resource + " to this gateway: list again")
	}
	return nil
}

// startRevision parses the resourceVersion of a list or watch. One from the future belongs to a lost store.
func (e *endpoint) startRevision(opts *metainternalversion.ListOptions) (uint64, error) {
	if opts == nil {
		return 0, nil
	}
	after, err := kinds.RevisionOf(opts.ResourceVersion)
	if err != nil {
		return 0, err
	}
	if after > e.objects.Revision() {
		return 0, apierrors.NewResourceExpired("the resource version is newer than this store: list again")
	}
	return after, nil
}
