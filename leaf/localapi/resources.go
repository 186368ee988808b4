package localapi

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// completeness is what the absence of an object from the store proves.
type completeness int

const (
	// partiallyHeld: the store holds the objects that the node's pods refer to; any other may exist in the cloud.
	partiallyHeld completeness = iota
	// fullyDelivered: the cloud sends every object of the kind, so that a list is complete once the store has attached. An
	// object may be in flight; a get of an object that is not stored asks the cloud.
	fullyDelivered
	// authoritative: as fullyDelivered, and for the node's own objects the store is the authority: not stored means absent.
	authoritative
)

// placement is where the objects of a resource are stored.
type placement int

const (
	inStore placement = iota
	// inMemory: objects that a restart may lose: leases, because a renewal every 10 s must not wear the flash, and recent
	// events, so that a recorder can patch their count.
	inMemory
)

// reportSink is where a local write is reported to.
type reportSink int

const (
	toNobody reportSink = iota
	toReports
	toEvents
)

// resource is one row of the table of served resources.
type resource struct {
	gvr          schema.GroupVersionResource
	kind         string
	singular     string
	shortNames   []string
	namespaced   bool
	object       func() runtime.Object
	list         func() runtime.Object
	completeness completeness
	// optional: only the cloud's announcement shows whether the store is complete.
	optional bool
	// ofNode: the cloud sends all objects of the kind whose spec.nodeName is this node.
	ofNode bool
	// unlisted: discovery omits the resource unless the cluster has it.
	unlisted  bool
	placement placement
	sink      reportSink
	// localWrites lists the writes performed here, as "verb" or "verb/subresource"; every other write is a call to the cloud.
	localWrites []string
	// selectable returns the values of field labels beyond metadata.name and metadata.namespace.
	selectable func(runtime.Object) fields.Set
	// anyLabel: any field label is accepted, as the cloud evaluates requests that use them.
	anyLabel bool
	columns  []metav1.TableColumnDefinition
	cells    func(runtime.Object) []any
	// conditions returns the conditions of a table's row, such as "completed" for a finished pod, which kubectl prints differently.
	conditions func(runtime.Object) []metav1.TableRowCondition
	// preserve restores the parts of the new object that a write to the (sub)resource must not change.
	preserve func(next, last runtime.Object, subresource string)
	// decorate changes an object before it is sent to clients; nil for none. Such a resource is never written here.
	decorate func(runtime.Object)
	// validate checks a local write as the cloud will check its report; last is nil when the object is new. nil: no check.
	validate func(next, last runtime.Object) field.ErrorList
	// storedForm is the form in which the objects are stored and reported; nil: the served one. Resources of one stored
	// form share their objects.
	storedForm *storedForm
	// schemaless objects have no Go type here.
	schemaless  bool
	decodeCache *decodeCache // shared by copies of the resource
}

func (r *resource) gvk() schema.GroupVersionKind { return r.gvr.GroupVersion().WithKind(r.kind) }

// storedGVR returns the resource under whose name, and in whose form, the objects are stored and reported.
func (r *resource) storedGVR() schema.GroupVersionResource {
	if r.storedForm != nil {
		return r.storedForm.gvr
	}
	return r.gvr
}

func (r *resource) writesLocally(write string) bool {
	return slices.Contains(r.localWrites, write)
}

// servedResources returns the table of resources that the gateway serves. Requests for any other resource go to the cloud.
func servedResources() []*resource {
	return slices.Concat(nodeResources(), memoryResources(), eventResources(), referencedResources(), deliveredResources(), otherResources(), optionalResources())
}

func coreResource(name string) schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource(name)
}

func storageResource(name string) schema.GroupVersionResource {
	return storagev1.SchemeGroupVersion.WithResource(name)
}

// nodeResources returns the node itself and its pods: the kubelet writes here, and reports go to the cloud.
func nodeResources() []*resource {
	return []*resource{
		{
			gvr: coreResource("pods"), kind: "Pod", singular: "pod", shortNames: []string{"po"}, namespaced: true, completeness: authoritative, sink: toReports,
			object: func() runtime.Object { return &corev1.Pod{} }, list: func() runtime.Object { return &corev1.PodList{} },
			localWrites: []string{"update/status", "patch/status", "delete"},
			selectable:  podFields, columns: podColumns(), cells: podCells, conditions: podRowConditions, preserve: preservePod,
		},
		{
			gvr: coreResource("nodes"), kind: "Node", singular: "node", shortNames: []string{"no"}, completeness: authoritative, sink: toReports,
			object: func() runtime.Object { return &corev1.Node{} }, list: func() runtime.Object { return &corev1.NodeList{} },
			localWrites: []string{"create", "update", "patch", "update/status", "patch/status"},
			selectable:  nodeFields, columns: nodeColumns(), cells: nodeCells, preserve: preserveNode,
		},
		{
			gvr: storageResource("csinodes"), kind: "CSINode", singular: "csinode", completeness: authoritative, sink: toReports,
			object: func() runtime.Object { return &storagev1.CSINode{} }, list: func() runtime.Object { return &storagev1.CSINodeList{} },
			localWrites: []string{"create", "update", "patch"},
		},
	}
}

func memoryResources() []*resource {
	return []*resource{
		{
			gvr: coordinationv1.SchemeGroupVersion.WithResource("leases"), kind: "Lease", singular: "lease", namespaced: true,
			completeness: authoritative, placement: inMemory,
			object:      func() runtime.Object { return &coordinationv1.Lease{} },
			list:        func() runtime.Object { return &coordinationv1.LeaseList{} },
			localWrites: []string{"create", "update", "patch", "delete"},
			columns:     leaseColumns(), cells: leaseCells,
		},
	}
}

// referencedResources returns the resources that are delivered as far as pods refer to them.
func referencedResources() []*resource {
	return []*resource{
		{
			gvr: coreResource("configmaps"), kind: "ConfigMap", singular: "configmap", shortNames: []string{"cm"}, namespaced: true,
			object:  func() runtime.Object { return &corev1.ConfigMap{} },
			list:    func() runtime.Object { return &corev1.ConfigMapList{} },
			columns: configMapColumns(), cells: configMapCells,
		},
		{
			gvr: coreResource("secrets"), kind: "Secret", singular: "secret", namespaced: true,
			object: func() runtime.Object { return &corev1.Secret{} }, list: func() runtime.Object { return &corev1.SecretList{} },
			selectable: secretFields, columns: secretColumns(), cells: secretCells,
		},
		{
			gvr: coreResource("serviceaccounts"), kind: "ServiceAccount", singular: "serviceaccount", shortNames: []string{"sa"}, namespaced: true,
			object: func() runtime.Object { return &corev1.ServiceAccount{} },
			list:   func() runtime.Object { return &corev1.ServiceAccountList{} },
		},
		{
			gvr: coreResource("persistentvolumeclaims"), kind: "PersistentVolumeClaim", singular: "persistentvolumeclaim",
			shortNames: []string{"pvc"}, namespaced: true,
			object: func() runtime.Object { return &corev1.PersistentVolumeClaim{} },
			list:   func() runtime.Object { return &corev1.PersistentVolumeClaimList{} },
		},
		{
			gvr: coreResource("persistentvolumes"), kind: "PersistentVolume", singular: "persistentvolume", shortNames: []string{"pv"},
			object: func() runtime.Object { return &corev1.PersistentVolume{} },
			list:   func() runtime.Object { return &corev1.PersistentVolumeList{} },
		},
	}
}

// deliveredResources returns the resources that are delivered completely to every node.
func deliveredResources() []*resource {
	return []*resource{
		{
			gvr: coreResource("services"), kind: "Service", singular: "service", shortNames: []string{"svc"}, namespaced: true, completeness: fullyDelivered,
			object: func() runtime.Object { return &corev1.Service{} }, list: func() runtime.Object { return &corev1.ServiceList{} },
			selectable: serviceFields, columns: serviceColumns(), cells: serviceCells,
		},
		{
			gvr: discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), kind: "EndpointSlice", singular: "endpointslice",
			namespaced: true, completeness: fullyDelivered,
			object: func() runtime.Object { return &discoveryv1.EndpointSlice{} },
			list:   func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		},
		{
			gvr: nodev1.SchemeGroupVersion.WithResource("runtimeclasses"), kind: "RuntimeClass", singular: "runtimeclass", completeness: fullyDelivered,
			object: func() runtime.Object { return &nodev1.RuntimeClass{} },
			list:   func() runtime.Object { return &nodev1.RuntimeClassList{} },
		},
		{
			gvr: storageResource("csidrivers"), kind: "CSIDriver", singular: "csidriver", completeness: fullyDelivered,
			object: func() runtime.Object { return &storagev1.CSIDriver{} },
			list:   func() runtime.Object { return &storagev1.CSIDriverList{} },
		},
	}
}

// otherResources returns those of rarer pod features; delivered objects are served from the store, for others the cloud is asked.
func otherResources() []*resource {
	return []*resource{
		{
			gvr: storageResource("volumeattachments"), kind: "VolumeAttachment", singular: "volumeattachment",
			object: func() runtime.Object { return &storagev1.VolumeAttachment{} },
			list:   func() runtime.Object { return &storagev1.VolumeAttachmentList{} },
		},
		{
			gvr: storageResource("storageclasses"), kind: "StorageClass", singular: "storageclass", shortNames: []string{"sc"},
			object: func() runtime.Object { return &storagev1.StorageClass{} },
			list:   func() runtime.Object { return &storagev1.StorageClassList{} },
		},
	}
}
