package desired

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// kindSpec describes one kind of object that nodes get.
type kindSpec struct {
	gvk      schema.GroupVersionKind
	resource string
	object   func() client.Object
	// nodeOf returns the node that an object itself belongs to; nil for kinds whose objects are only referenced or go to all nodes.
	nodeOf func(client.Object) string
	// references returns what an object needs; nil: nothing.
	references func(client.Object) []wire.Key
	// everywhere: every edge node gets each object of the kind.
	everywhere bool
	// subjects returns the subjects that a binding names; nil for all other kinds.
	subjects func(client.Object) []string
	// signer returns the signer of a trust bundle; nil for all other kinds.
	signer func(client.Object) string
	// scopedOnly: nodes get the kind only in scopes that a component there requested; such kinds are not in kindTable.
	scopedOnly bool
}

func (k *kindSpec) keyOf(namespace, name string) wire.Key {
	return wire.Key{Group: k.gvk.Group, Resource: k.resource, Namespace: namespace, Name: name}
}

// kindTable returns the kinds that reach nodes without a scope. Other kinds come only in scopes: see kindinformer.go.
func kindTable(services bool) []*kindSpec {
	core, storage := corev1.SchemeGroupVersion.WithKind, storagev1.SchemeGroupVersion.WithKind
	all := []*kindSpec{
		{
			gvk: core("Pod"), resource: "pods", object: func() client.Object { return &corev1.Pod{} },
			nodeOf:     func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName },
			references: func(o client.Object) []wire.Key { return references.OfPod(o.(*corev1.Pod)) },
		},
		{
			gvk: core("Node"), resource: "nodes", object: func() client.Object { return &corev1.Node{} },
			nodeOf: client.Object.GetName,
		},
		{gvk: core("ConfigMap"), resource: "configmaps", object: func() client.Object { return &corev1.ConfigMap{} }},
		{gvk: core("Secret"), resource: "secrets", object: func() client.Object { return &corev1.Secret{} }},
		{
			gvk: core("ServiceAccount"), resource: "serviceaccounts",
			object:     func() client.Object { return &corev1.ServiceAccount{} },
			references: accountReferences,
		},
		{
			gvk: core("PersistentVolumeClaim"), resource: "persistentvolumeclaims",
			object:     func() client.Object { return &corev1.PersistentVolumeClaim{} },
			references: func(o client.Object) []wire.Key { return references.OfClaim(o.(*corev1.PersistentVolumeClaim)) },
		},
		{
			gvk: core("PersistentVolume"), resource: "persistentvolumes",
			object:     func() client.Object { return &corev1.PersistentVolume{} },
			references: func(o client.Object) []wire.Key { return references.OfVolume(o.(*corev1.PersistentVolume)) },
		},
		{
			gvk: storage("CSINode"), resource: "csinodes", object: func() client.Object { return &storagev1.CSINode{} },
			nodeOf: client.Object.GetName,
		},
		{
			gvk: storage("VolumeAttachment"), resource: "volumeattachments",
			object: func() client.Object { return &storagev1.VolumeAttachment{} },
			nodeOf: func(o client.Object) string { return o.(*storagev1.VolumeAttachment).Spec.NodeName },
		},
		{
			gvk: storage("CSIDriver"), resource: "csidrivers", everywhere: true,
			object: func() client.Object { return &storagev1.CSIDriver{} },
		},
		{
			gvk: nodev1.SchemeGroupVersion.WithKind("RuntimeClass"), resource: "runtimeclasses", everywhere: true,
			object: func() client.Object { return &nodev1.RuntimeClass{} },
		},
	}
	all = append(all, rbacKinds()...)
	if !services {
		return all
	}
	return append(all,
		&kindSpec{
			gvk: core("Service"), resource: "services", everywhere: true,
			object: func() client.Object { return &corev1.Service{} },
		},
		&kindSpec{
			gvk: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), resource: "endpointslices", everywhere: true,
			object: func() client.Object { return &discoveryv1.EndpointSlice{} },
		})
}

// groupResource identifies a kind in a key.
type groupResource struct{ group, resource string }

func kindOf(key wire.Key) groupResource { return groupResource{key.Group, key.Resource} }
