// Package kinds describes the kinds of objects that nodes get: which node an object belongs to, what it references, and by
// which indexes the cache finds it. It only holds tables and pure functions.
package kinds

import (
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// Spec describes one kind of object that nodes get.
type Spec struct {
	GVK      schema.GroupVersionKind
	Resource string
	Object   func() client.Object
	// NodeOf returns the node that an object itself belongs to; nil for kinds whose objects are only referenced or go to all nodes.
	NodeOf func(client.Object) string
	// Withheld reports whether a node must not be given an object, whatever asks for it; nil: never.
	Withheld func(o client.Object, node string) bool
	// References returns what an object needs; nil: nothing.
	References func(client.Object) []wire.Key
	// Everywhere: every edge node gets each object of the kind.
	Everywhere bool
	// ByNeed: a node gets those that its pods need, and all in scopes, which it need not ask for before it says that it can.
	ByNeed bool
	// Paced: changes of an object are published at most once a second. It may flap, and reaches many nodes.
	Paced bool
	// Subjects returns the subjects that a binding names; nil for all other kinds.
	Subjects func(client.Object) []string
	// Service returns the name of the Service, with its namespace, that an object has endpoints of; nil for all other kinds.
	Service func(client.Object) string
	// Signer returns the signer of a trust bundle; nil for all other kinds.
	Signer func(client.Object) string
	// ScopedOnly: nodes get the kind only in scopes that a component there requested; such kinds are not in Table.
	ScopedOnly bool
}

// ID returns the kind's identity in keys.
func (k *Spec) ID() ID { return ID{k.GVK.Group, k.Resource} }

// Key returns the key of an object of the kind.
func (k *Spec) Key(namespace, name string) wire.Key {
	return wire.Key{Group: k.GVK.Group, Resource: k.Resource, Namespace: namespace, Name: name}
}

// Table returns the kinds that reach nodes without a scope. Other kinds come only in scopes.
func Table(services bool) []*Spec {
	core, storage := corev1.SchemeGroupVersion.WithKind, storagev1.SchemeGroupVersion.WithKind
	all := []*Spec{
		{
			GVK: core("Pod"), Resource: "pods", Object: func() client.Object { return &corev1.Pod{} },
			NodeOf:     func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName },
			References: func(o client.Object) []wire.Key { return references.OfPod(o.(*corev1.Pod)) },
		},
		{
			GVK: core("Node"), Resource: "nodes", Object: func() client.Object { return &corev1.Node{} },
			NodeOf: client.Object.GetName,
		},
		{GVK: core("ConfigMap"), Resource: "configmaps", Object: func() client.Object { return &corev1.ConfigMap{} }},
		{GVK: core("Secret"), Resource: "secrets", Object: func() client.Object { return &corev1.Secret{} }},
		{
			GVK: core("ServiceAccount"), Resource: "serviceaccounts",
			Object:     func() client.Object { return &corev1.ServiceAccount{} },
			References: accountReferences,
		},
		{
			GVK: core("PersistentVolumeClaim"), Resource: "persistentvolumeclaims",
			Object:     func() client.Object { return &corev1.PersistentVolumeClaim{} },
			References: func(o client.Object) []wire.Key { return references.OfClaim(o.(*corev1.PersistentVolumeClaim)) },
		},
		{
			GVK: core("PersistentVolume"), Resource: "persistentvolumes",
			Object:     func() client.Object { return &corev1.PersistentVolume{} },
			References: func(o client.Object) []wire.Key { return references.OfVolume(o.(*corev1.PersistentVolume)) },
		},
		{
			GVK: storage("CSINode"), Resource: "csinodes", Object: func() client.Object { return &storagev1.CSINode{} },
			NodeOf: client.Object.GetName,
		},
		{
			GVK: storage("VolumeAttachment"), Resource: "volumeattachments",
			Object: func() client.Object { return &storagev1.VolumeAttachment{} },
			NodeOf: func(o client.Object) string { return o.(*storagev1.VolumeAttachment).Spec.NodeName },
		},
		{
			GVK: storage("CSIDriver"), Resource: "csidrivers", Everywhere: true,
			Object: func() client.Object { return &storagev1.CSIDriver{} },
		},
		{
			GVK: nodev1.SchemeGroupVersion.WithKind("RuntimeClass"), Resource: "runtimeclasses", Everywhere: true,
			Object: func() client.Object { return &nodev1.RuntimeClass{} },
		},
	}
	all = append(all, rbacKinds()...)
	if !services {
		return all
	}
	all[0].References = func(o client.Object) []wire.Key { return podReferences(o.(*corev1.Pod)) }
	return append(all, serviceKinds()...)
}

// ID identifies a kind in a key.
type ID struct{ Group, Resource string }

// Of returns the kind of an object.
func Of(key wire.Key) ID { return ID{key.Group, key.Resource} }

// IsStatic reports whether an object is none of Kubernetes, and can only come from the engine's caller.
func IsStatic(key wire.Key) bool {
	return key == wire.TokenKeysKey() || key == wire.DeliveredKindsKey()
}

// TableByID returns the kinds of Table by their ID.
func TableByID(services bool) map[ID]*Spec {
	byID := map[ID]*Spec{}
	for _, k := range Table(services) {
		byID[k.ID()] = k
	}
	return byID
}
