package controllers

import (
	"slices"

	"github.com/frond-edge/frond/api/wire"
)

// ProtectedNamespaces is the set of namespaces whose objects are never published to a gateway, whatever refers to them.
// The zero value is empty. It does not change and may be used concurrently.
type ProtectedNamespaces struct{ names []string }

// ProtectNamespaces returns the set of the named namespaces, sorted, each once.
func ProtectNamespaces(names ...string) ProtectedNamespaces {
	names = slices.Clone(names)
	slices.Sort(names)
	return ProtectedNamespaces{names: slices.Compact(names)}
}

// Contains reports whether a namespace is protected; "" is not.
func (p ProtectedNamespaces) Contains(namespace string) bool {
	_, found := slices.BinarySearch(p.names, namespace)
	return found
}

// Covers reports whether an object is in a protected namespace.
func (p ProtectedNamespaces) Covers(key wire.Key) bool { return p.Contains(key.Namespace) }

// Names returns the namespaces in order. The caller must not change the slice.
func (p ProtectedNamespaces) Names() []string { return p.names }
