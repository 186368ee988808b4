// Package shortkey holds keys of objects in half the memory of a wire.Key, for tables with millions of them.
package shortkey

import (
	"unique"

	"github.com/frond-edge/frond/api/wire"
)

// Key is a wire.Key whose kind and namespace, which few values share out, are in memory once. Equal keys are ==.
type Key struct {
	kind      unique.Handle[kind]
	namespace unique.Handle[string]
	name      string
}

type kind struct{ group, resource string }

// Of returns the short form of a key. It shares the memory of the key's name.
func Of(key wire.Key) Key {
	return Key{unique.Make(kind{key.Group, key.Resource}), unique.Make(key.Namespace), key.Name}
}

// Wire returns the key.
func (k Key) Wire() wire.Key {
	kind := k.kind.Value()
	return wire.Key{Group: kind.group, Resource: kind.resource, Namespace: k.namespace.Value(), Name: k.name}
}

// WithName returns the key with another text as its name.
func (k Key) WithName(name string) Key {
	k.name = name
	return k
}
