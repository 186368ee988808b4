// Package kinds describes the resources that the local API serves: how complete the store is for them, their stored and served
// forms, field selectors and tables.
package kinds

import (
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
)

// completeness is what the absence of an object from the store proves.
type completeness int

const (
	// PartiallyHeld says that the store holds the objects that the node's pods refer to; any other may exist in the cloud.
	PartiallyHeld completeness = iota
	// FullyDelivered says that the cloud sends every object of the kind, so that a list is complete once the store has attached. An
	// object may be in flight; a get of an object that is not stored asks the cloud.
	FullyDelivered
	// Authoritative is as FullyDelivered, and for the node's own objects the store is the authority: not stored means absent.
	Authoritative
)

// placement is where the objects of a resource are stored.
type placement int

const (
	// InStore is the node's store.
	InStore placement = iota
	// InMemory is for objects that a restart may lose: leases, because a renewal every 10 s must not wear the flash, and recent
	// events, so that a recorder can patch their count.
	InMemory
)

// reportSink is where a local write is reported to.
type reportSink int

// The sinks.
const (
	// ToNobody is nowhere.
	ToNobody reportSink = iota
	ToReports
	ToEvents
)

// Resource is one row of the table of served resources.
type Resource struct {
	GVR          schema.GroupVersionResource
	Kind         string
	Singular     string
	ShortNames   []string
	Namespaced   bool
	Object       func() runtime.Object
	List         func() runtime.Object
	Completeness completeness
	// ByNeed: of a FullyDelivered kind a cloud that has said so (wire.ServicesByNeedKey) sends only what pods need, and the rest in scopes.
	ByNeed bool
	// Optional: only the cloud's announcement shows whether the store is complete.
	Optional bool
	// OfNode: the cloud sends all objects of the kind whose spec.nodeName is this node.
	OfNode bool
	// Unlisted: discovery omits the resource unless the cluster has it.
	Unlisted  bool
	Placement placement
	Sink      reportSink
	// LocalWrites lists the writes performed here, as "verb" or "verb/subresource"; every other write is a call to the cloud.
	LocalWrites []string
	// selectable returns the values of field labels beyond metadata.name and metadata.namespace.
	selectable func(runtime.Object) fields.Set
	// AnyLabel: any field label is accepted, as the cloud evaluates requests that use them.
	AnyLabel bool
	columns  []metav1.TableColumnDefinition
	cells    func(runtime.Object) []any
	// conditions returns the conditions of a table's row, such as "completed" for a finished pod, which kubectl prints differently.
	conditions func(runtime.Object) []metav1.TableRowCondition
	// Preserve restores the parts of the new object that a write to the (sub)resource must not change.
	Preserve func(next, last runtime.Object, subresource string)
	// Decorate changes an object before it is sent to clients; nil for none. Such a resource is never written here.
	Decorate func(runtime.Object)
	// Validate checks a local write as the cloud will check its report; last is nil when the object is new. nil: no check.
	Validate func(next, last runtime.Object) field.ErrorList
	// StoredForm is the form in which the objects are stored and reported; nil: the served one. Resources of one stored
	// form share their objects.
	StoredForm *storedForm
	// Schemaless objects have no Go type here.
	Schemaless  bool
	DecodeCache *DecodeCache // shared by copies of the resource
}

// GVK returns the resource's kind.
func (r *Resource) GVK() schema.GroupVersionKind { return r.GVR.GroupVersion().WithKind(r.Kind) }

// StoredGVR returns the resource under whose name, and in whose form, the objects are stored and reported.
func (r *Resource) StoredGVR() schema.GroupVersionResource {
	if r.StoredForm != nil {
		return r.StoredForm.gvr
	}
	return r.GVR
}

// WritesLocally reports whether a write, "verb" or "verb/subresource", is performed on the gateway.
func (r *Resource) WritesLocally(write string) bool {
	return slices.Contains(r.LocalWrites, write)
}

// Served returns the table of resources that the gateway serves. Requests for any other resource go to the cloud.
func Served() []*Resource {
	table := slices.Concat(nodeResources(), memoryResources(), eventResources(), referencedResources(), deliveredResources(), otherResources(), optionalResources())
	for _, r := range table {
		r.SetType()
	}
	return table
}

// CoreResource returns a resource of the core group.
func CoreResource(name string) schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource(name)
}

// StorageResource returns a resource of storage.k8s.io.
func StorageResource(name string) schema.GroupVersionResource {
	return storagev1.SchemeGroupVersion.WithResource(name)
}

// nodeResources returns the node itself and its pods: the kubelet writes here, and reports go to the cloud.
func nodeResources() []*Resource {
	return []*Resource{
		{
			GVR: CoreResource("pods"), Kind: "Pod", ShortNames: []string{"po"}, Namespaced: true, Completeness: Authoritative, Sink: ToReports,
			LocalWrites: []string{"update/status", "patch/status", "delete"},
			selectable:  podFields, columns: podColumns(), cells: podCells, conditions: podRowConditions, Preserve: preservePod,
		},
		{
			GVR: CoreResource("nodes"), Kind: "Node", ShortNames: []string{"no"}, Completeness: Authoritative, Sink: ToReports,
			LocalWrites: []string{"create", "update", "patch", "update/status", "patch/status"},
			selectable:  nodeFields, columns: nodeColumns(), cells: nodeCells, Preserve: preserveNode,
		},
		{
			GVR: StorageResource("csinodes"), Kind: "CSINode", Completeness: Authoritative, Sink: ToReports,
			LocalWrites: []string{"create", "update", "patch"},
		},
	}
}

func memoryResources() []*Resource {
	return []*Resource{
		{
			GVR: coordinationv1.SchemeGroupVersion.WithResource("leases"), Kind: "Lease", Namespaced: true,
			Completeness: Authoritative, Placement: InMemory,
			LocalWrites: []string{"create", "update", "patch", "delete"},
			columns:     leaseColumns(), cells: leaseCells,
		},
	}
}

// referencedResources returns the resources that are delivered as far as pods refer to them.
func referencedResources() []*Resource {
	return []*Resource{
		{
			GVR: CoreResource("configmaps"), Kind: "ConfigMap", ShortNames: []string{"cm"}, Namespaced: true,
			columns: configMapColumns(), cells: configMapCells,
		},
		{
			GVR: CoreResource("secrets"), Kind: "Secret", Namespaced: true,
			selectable: secretFields, columns: secretColumns(), cells: secretCells,
		},
		{
			GVR: CoreResource("serviceaccounts"), Kind: "ServiceAccount", ShortNames: []string{"sa"}, Namespaced: true,
		},
		{
			GVR: CoreResource("persistentvolumeclaims"), Kind: "PersistentVolumeClaim",
			ShortNames: []string{"pvc"}, Namespaced: true,
		},
		{
			GVR: CoreResource("persistentvolumes"), Kind: "PersistentVolume", ShortNames: []string{"pv"},
		},
	}
}

// deliveredResources returns the resources that are delivered completely to every node.
func deliveredResources() []*Resource {
	return []*Resource{
		{
			GVR: CoreResource("services"), Kind: "Service", ShortNames: []string{"svc"}, Namespaced: true, Completeness: FullyDelivered, ByNeed: true,
			selectable: serviceFields, columns: serviceColumns(), cells: serviceCells,
		},
		{GVR: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), Kind: "EndpointSlice", Namespaced: true, Completeness: FullyDelivered, ByNeed: true},
		{
			GVR: nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), Kind: "RuntimeClass", Completeness: FullyDelivered,
		},
		{
			GVR: StorageResource("csidrivers"), Kind: "CSIDriver", Completeness: FullyDelivered,
		},
	}
}

// otherResources returns those of rarer pod features; delivered objects are served from the store, for others the cloud is asked.
func otherResources() []*Resource {
	return []*Resource{
		{
			GVR: StorageResource("volumeattachments"), Kind: "VolumeAttachment",
		},
		{
			GVR: StorageResource("storageclasses"), Kind: "StorageClass", ShortNames: []string{"sc"},
		},
	}
}

// CloudPath returns the cloud's path of an object, of its collection for an empty name, and of all namespaces for an empty
// namespace; unescaped, as in wire.KubeRequest.
func (r *Resource) CloudPath(key wire.Key) string {
	path := "/apis/" + r.GVR.Group
	if r.GVR.Group == "" {
		path = "/api"
	}
	path += "/" + r.GVR.Version
	if r.Namespaced && key.Namespace != "" {
		path += "/namespaces/" + key.Namespace
	}
	path += "/" + r.GVR.Resource
	if key.Name != "" {
		path += "/" + key.Name
	}
	return path
}

// ListSubresources returns "" and the subresources that can be written here.
func (r *Resource) ListSubresources() []string {
	subs := []string{""}
	for _, w := range r.LocalWrites {
		if _, sub, ok := strings.Cut(w, "/"); ok && !slices.Contains(subs, sub) {
			subs = append(subs, sub)
		}
	}
	return subs
}

// ListAPIResources lists the resource and its subresources with their verbs; writes that go to the cloud are verbs too.
func (r *Resource) ListAPIResources() []metav1.APIResource {
	verbs := metav1.Verbs{"create", "delete", "get", "list", "patch", "update", "watch"}
	if r.GVR.Resource == "events" {
		verbs = slices.DeleteFunc(verbs, func(v string) bool { return v == "delete" })
	}
	out := []metav1.APIResource{{
		Name: r.GVR.Resource, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind, ShortNames: r.ShortNames, Verbs: verbs,
	}}
	for _, sub := range r.ListSubresources()[1:] {
		out = append(out, metav1.APIResource{
			Name: r.GVR.Resource + "/" + sub, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: metav1.Verbs{"get", "patch", "update"},
		})
	}
	return out
}

// SetType derives the constructors of objects and lists from the kind, and the singular name unless it is set: with a Go type if this
// program has one, and otherwise schemaless.
func (r *Resource) SetType() {
	if r.Singular == "" {
		r.Singular = strings.ToLower(r.Kind)
	}
	kind, list := r.GVK(), r.GVR.GroupVersion().WithKind(r.Kind+"List")
	if scheme.Scheme.Recognizes(kind) && scheme.Scheme.Recognizes(list) {
		r.Object, r.List = typedConstructor(kind), typedConstructor(list)
		return
	}
	r.Schemaless = true
	r.Object = func() runtime.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kind)
		return u
	}
	r.List = func() runtime.Object {
		u := &unstructured.UnstructuredList{}
		u.SetGroupVersionKind(list)
		return u
	}
}

func typedConstructor(kind schema.GroupVersionKind) func() runtime.Object {
	return func() runtime.Object {
		obj, err := scheme.Scheme.New(kind)
		if err != nil {
			panic(err) // it is registered: SetType has checked
		}
		return obj
	}
}
