package localapi

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/leaf/localapi/catalog"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/nodewrite"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/query"
)

// route is one resource or subresource with its REST storage and the data that the endpoint handlers need.
type route struct {
	resource *kinds.Resource
	reader   *query.ResourceReader
	writer   *nodewrite.ResourceWriter // nil for programs other than the node
	scope    *handlers.RequestScope
}

// routeTable finds the route of a resource: for the node in this gateway's own table, for programs also in the cloud's catalog.
type routeTable struct {
	maxBytes   int64
	store      objectstore.Store
	readers    *query.Readers
	catalog    *catalog.Catalog
	nodeRoutes map[schema.GroupVersionResource]map[string]*route // by subresource

	mu            sync.Mutex // guards programRoutes
	programRoutes map[schema.GroupVersionResource]*route
}

// addNodeRoutes adds the routes of the served resources, before the first request.
func (t *routeTable) addNodeRoutes(served []*kinds.Resource, decorate *decorator, writers *nodewrite.Writers) error {
	t.nodeRoutes = map[schema.GroupVersionResource]map[string]*route{}
	memories := map[schema.GroupVersionResource]*objectstore.Memory{}
	for _, r := range served {
		r.Decorate = decorate.decoratorFor(r)
		if !r.Schemaless {
			r.DecodeCache = &kinds.DecodeCache{}
		}
		where := t.store
		if r.Placement == kinds.InMemory {
			if memories[r.StoredGVR()] == nil {
				memories[r.StoredGVR()] = objectstore.NewMemory(r.GVR.Resource)
			}
			where = memories[r.StoredGVR()]
		}
		t.nodeRoutes[r.GVR] = map[string]*route{}
		for _, sub := range r.ListSubresources() {
			scope, err := newScope(r, sub, t.maxBytes)
			if err != nil {
				return fmt.Errorf("serve %s: %w", r.GVR.Resource, err)
			}
			t.nodeRoutes[r.GVR][sub] = &route{resource: r, reader: t.readers.ForNode(r, where), writer: writers.Of(r, sub, where), scope: scope}
		}
	}
	return nil
}

// programRoute returns the route of a kind for programs other than the node, created at first use; nil if there is no
// such kind. The error is a status: the existence of the kind is not known.
func (t *routeTable) programRoute(ctx context.Context, gvr schema.GroupVersionResource) (*route, error) {
	t.mu.Lock()
	rt := t.programRoutes[gvr]
	t.mu.Unlock()
	if rt != nil {
		return rt, nil
	}
	r, err := t.resolveKind(ctx, gvr)
	if err != nil || r == nil {
		return nil, err
	}
	scope, err := newScope(r, "", t.maxBytes)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	rt = &route{resource: r, reader: t.readers.ForPrograms(r, t.store), scope: scope}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.programRoutes == nil {
		t.programRoutes = map[schema.GroupVersionResource]*route{}
	}
	t.programRoutes[gvr] = rt
	return rt, nil
}

// newScope describes a resource to the endpoint handlers. Its hub version is the served version itself, as for custom
// resources, so no internal types and no conversions are needed.
func newScope(r *kinds.Resource, subresource string, maxBytes int64) (*handlers.RequestScope, error) {
	serializer := runtime.NegotiatedSerializer(scheme.Codecs)
	if r.Schemaless {
		serializer = kinds.NewSchemalessSerializer()
	}
	var fieldManager *managedfields.FieldManager
	var err error
	if len(r.LocalWrites) > 0 {
		// Field managers are recorded only for objects that were ever applied; the gateway performs no server-side apply.
		fieldManager, err = managedfields.NewDefaultFieldManager(managedfields.NewDeducedTypeConverter(),
			scheme.Scheme, scheme.Scheme, scheme.Scheme, r.GVK(), r.GVR.GroupVersion(), subresource, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("field manager: %w", err)
	}
	return &handlers.RequestScope{
		Namer:                    handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: !r.Namespaced},
		Serializer:               serializer,
		ParameterCodec:           scheme.ParameterCodec,
		Creater:                  scheme.Scheme, //nolint:misspell // upstream's word
		Convertor:                kinds.NewFieldConvertor(scheme.Scheme, r),
		Defaulter:                scheme.Scheme,
		Typer:                    scheme.Scheme,
		UnsafeConvertor:          runtime.UnsafeObjectConvertor(scheme.Scheme),
		EquivalentResourceMapper: runtime.NewEquivalentResourceRegistry(),
		TableConvertor:           r,
		FieldManager:             fieldManager,
		Resource:                 r.GVR,
		Kind:                     r.GVK(),
		Subresource:              subresource,
		MetaGroupVersion:         metav1.SchemeGroupVersion,
		HubGroupVersion:          r.GVR.GroupVersion(),
		MaxRequestBodyBytes:      maxBytes,
	}, nil
}

// resolveKind describes a kind from this gateway's own table or from the cloud's description, typed if this program has the type.
func (t *routeTable) resolveKind(ctx context.Context, gvr schema.GroupVersionResource) (*kinds.Resource, error) {
	if own := t.nodeRoutes[gvr][""]; own != nil {
		r := *own.resource
		r.LocalWrites, r.Sink, r.AnyLabel = nil, kinds.ToNobody, r.Placement == kinds.InMemory
		r.StoredForm, r.Validate = nil, nil // objects in memory are the node's; these programs get the cloud's answers
		return &r, nil
	}
	described, err := t.catalog.FindKind(ctx, gvr)
	if err != nil || described == nil {
		return nil, err
	}
	r := &kinds.Resource{
		GVR: gvr, Kind: described.Kind, Singular: described.SingularName, ShortNames: described.ShortNames, Namespaced: described.Namespaced,
	}
	r.SetType()
	if !r.Schemaless {
		r.DecodeCache = &kinds.DecodeCache{}
	}
	return r, nil
}
