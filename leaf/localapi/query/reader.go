// Package query answers gets, lists and watches of a gateway's objects: from the store or from memory, and from the cloud where the gateway
// may not hold an object.
//
// An unknown object is never reported as absent. The node sees what the gateway has, and of its own objects that is all there is. Other
// programs see of a kind only what the cloud keeps complete here. The pages of a list are all of one moment. A watch may be as slow as
// its client: the store keeps a window of events and never waits.
package query

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/completeness"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/records"
)

// Readers is what the readers of all resources share. Its methods may be called concurrently.
type Readers struct {
	node          string
	bookmarkEvery time.Duration
	cloud         *cloudFetcher
	complete      *completeness.Evaluator
	limits        *limit.Limits
	pages         pages
}

// New creates the Readers of a node. bookmarkEvery is how often an idle watch gets a bookmark, plus a random time of up to the same length.
func New(node string, bookmarkEvery time.Duration, cloud *cloudcall.Client, absences *records.Absences,
	complete *completeness.Evaluator, limits *limit.Limits,
) *Readers {
	return &Readers{node: node, bookmarkEvery: bookmarkEvery, cloud: &cloudFetcher{cloud, absences}, complete: complete, limits: limits}
}

// ForNode returns the reader of a resource for the node itself.
func (s *Readers) ForNode(resource *kinds.Resource, objects objectstore.Store) *ResourceReader {
	return &ResourceReader{shared: s, resource: resource, objects: objects, view: &nodeView{
		node: s.node, resource: resource, objects: objects, complete: s.complete, cloud: s.cloud,
	}}
}

// ForPrograms returns the reader of a resource for programs other than the node.
func (s *Readers) ForPrograms(resource *kinds.Resource, objects objectstore.Store) *ResourceReader {
	return &ResourceReader{shared: s, resource: resource, objects: objects, view: &programView{
		resource: resource, objects: objects, complete: s.complete, cloud: s.cloud,
	}}
}

// ResourceReader reads the objects of one resource. It is the REST storage of its reads.
type ResourceReader struct {
	shared   *Readers
	resource *kinds.Resource
	objects  objectstore.Store
	view     view
}

// view is what a group of callers may see of a resource, and when it is complete. Its errors are statuses.
type view interface {
	// findObject returns one object.
	findObject(ctx context.Context, key wire.Key) (runtime.Object, error)
	// prepareList waits until a list is complete. It returns an object that the cloud has sent instead, if one is wanted by name.
	prepareList(ctx context.Context, namespace string, f *kinds.Filter) (runtime.Object, error)
	// checkComplete ensures that a list or watch at a revision has everything: a scope may end at any time, and its marker goes before
	// its objects. One that ended and came back was incomplete in between: what is older than its marker may be that.
	checkComplete(namespace string, opts *metainternalversion.ListOptions, revision uint64) error
}

// NewList returns an empty list of the resource.
func (r *ResourceReader) NewList() runtime.Object { return r.resource.List() }

// ConvertToTable returns the table that kubectl prints.
func (r *ResourceReader) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return r.resource.ConvertToTable(ctx, obj, options)
}

// Get returns one object: from the store, or from the cloud if it may exist there only.
func (r *ResourceReader) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return r.view.findObject(ctx, r.resource.ObjectKey(request.NamespaceValue(ctx), name))
}

// List answers from the store.
func (r *ResourceReader) List(ctx context.Context, opts *metainternalversion.ListOptions) (runtime.Object, error) {
	if opts != nil && opts.Continue != "" {
		return r.shared.pages.nextPage(ctx, r.resource, opts)
	}
	f := kinds.NewFilter(r.resource, opts)
	after, err := r.startRevision(opts)
	if err != nil {
		return nil, err
	}
	if opts != nil && opts.ResourceVersionMatch == metav1.ResourceVersionMatchExact && after != r.objects.Revision() {
		return nil, apierrors.NewResourceExpired("the gateway keeps no old versions: list the present one")
	}
	items, revision, err := r.listMatching(ctx, &f)
	if err != nil {
		return nil, err
	}
	if err := r.view.checkComplete(request.NamespaceValue(ctx), opts, revision); err != nil {
		return nil, err
	}
	return r.shared.pages.firstPage(ctx, r.resource, opts, items, revision)
}

// listMatching returns the matching objects and the revision at which they match. The objects are shared: see kinds.Resource.DecodeShared.
func (r *ResourceReader) listMatching(ctx context.Context, f *kinds.Filter) ([]runtime.Object, uint64, error) {
	namespace := request.NamespaceValue(ctx)
	extra, err := r.view.prepareList(ctx, namespace, f)
	if err != nil {
		return nil, 0, err
	}
	done, err := r.shared.limits.AdmitList(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	entries, revision := r.objects.List(r.resource.GVR.Group, r.resource.GVR.Resource, namespace)
	items := make([]runtime.Object, 0, len(entries))
	for _, entry := range entries {
		if !f.MayMatch(entry.Key.Namespace, entry.Key.Name) {
			continue
		}
		obj, err := r.resource.DecodeShared(entry)
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

// startRevision parses the resourceVersion of a list or watch. One from the future belongs to a lost store.
func (r *ResourceReader) startRevision(opts *metainternalversion.ListOptions) (uint64, error) {
	if opts == nil {
		return 0, nil
	}
	after, err := kinds.RevisionOf(opts.ResourceVersion)
	if err != nil {
		return 0, err
	}
	if after > r.objects.Revision() {
		return 0, apierrors.NewResourceExpired("the resource version is newer than this store: list again")
	}
	return after, nil
}
