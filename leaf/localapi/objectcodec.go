package localapi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// objectWatch is a running watch of objects. Next waits for the next event; it returns ErrGone for a watch that fell too
// far behind, and ctx's error. With an ended ctx it returns events that are already there.
type objectWatch interface {
	Next(ctx context.Context) (store.Event, error)
	Stop()
}

// objectStore holds the objects of a resource: the store, or memory. The errors are the store's.
type objectStore interface {
	Get(key wire.Key) (store.Entry, error)
	List(group, resource, namespace string) ([]store.Entry, uint64)
	Watch(group, resource, namespace string, after uint64) (objectWatch, error)
	Put(ctx context.Context, key wire.Key, object []byte, ifRevision *uint64) (store.Entry, error)
	Delete(ctx context.Context, key wire.Key, uid string, ifRevision *uint64) (store.Entry, error)
	Revision() uint64
}

// persistentStore adapts the store to objectStore.
type persistentStore struct{ *store.Store }

func (s persistentStore) Watch(group, resource, namespace string, after uint64) (objectWatch, error) {
	w, err := s.Store.Watch(group, resource, namespace, after)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// objectStamp is the data that accompanies an object's typed form while it is processed.
type objectStamp struct {
	revision     uint64
	cloudVersion string // metadata.resourceVersion as the cloud sent it
}

// decode returns the object as clients see it: with the local resourceVersion, and always with a UID, even while the cloud
// has not assigned one. Client code treats an object without a UID as one that does not exist.
func (r *resource) decode(e store.Entry) (runtime.Object, objectStamp, error) {
	obj, err := r.unmarshalStored(e.Object)
	if err != nil {
		return nil, objectStamp{}, fmt.Errorf("decode %s: %w", e.Key.Human(), err)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, objectStamp{}, fmt.Errorf("decode %s: %w", e.Key.Human(), err)
	}
	v := objectStamp{revision: e.Revision, cloudVersion: m.GetResourceVersion()}
	m.SetResourceVersion(localVersion(e.Revision))
	if m.GetUID() == "" {
		m.SetUID(provisionalUID(e.Key))
	}
	m.SetManagedFields(nil)
	if !r.schemaless {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the encoder sets it where clients expect it
	}
	if r.decorate != nil {
		r.decorate(obj)
	}
	return obj, v, nil
}

// unmarshalStored decodes an object in its stored form.
func (r *resource) unmarshalStored(data []byte) (runtime.Object, error) {
	if r.storedForm == nil {
		obj := r.object()
		return obj, utiljson.Unmarshal(data, obj)
	}
	obj := r.storedForm.object()
	if err := utiljson.Unmarshal(data, obj); err != nil {
		return nil, err
	}
	return r.storedForm.toServed(obj), nil
}

// encode reverses decode: it returns the JSON for the store and the report.
func (r *resource) encode(key wire.Key, obj runtime.Object, v objectStamp) ([]byte, string, error) {
	obj = obj.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, "", fmt.Errorf("encode %s: %w", key.Human(), err)
	}
	if m.GetUID() == provisionalUID(key) {
		m.SetUID("")
	}
	if err := r.removeProvisionalOwner(obj); err != nil {
		return nil, "", err
	}
	m.SetResourceVersion(v.cloudVersion)
	m.SetManagedFields(nil)
	if r.storedForm != nil {
		obj = r.storedForm.toStored(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(r.storedGVR().GroupVersion().WithKind(r.kind))
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, "", fmt.Errorf("encode %s: %w", key.Human(), err)
	}
	return data, string(m.GetUID()), nil
}

// removeProvisionalOwner removes an owner whose UID the cloud does not know: its garbage collector would delete the object.
func (r *resource) removeProvisionalOwner(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("disown: %w", err)
	}
	m.SetOwnerReferences(slices.DeleteFunc(m.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return o.Kind == "Node" && o.UID == provisionalUID(wire.Key{Resource: "nodes", Name: o.Name})
	}))
	return nil
}

// provisionalUID returns the UID served for an object created here while the cloud could not be asked. It depends on the
// name alone, so it is the same after a restart, and it is never sent.
func provisionalUID(key wire.Key) types.UID {
	return types.UID(uuid.NewSHA1(uuid.NameSpaceOID, []byte("frond.io/provisional/"+key.String())).String())
}

func (r *resource) objectKey(namespace, name string) wire.Key {
	if !r.namespaced {
		namespace = ""
	}
	return wire.Key{Group: r.storedGVR().Group, Resource: r.gvr.Resource, Namespace: namespace, Name: name}
}

// buildList puts objects into a new list of the resource.
func (r *resource) buildList(items []runtime.Object, revision uint64) (runtime.Object, error) {
	list := r.list()
	if err := meta.SetList(list, items); err != nil {
		return nil, fmt.Errorf("list of %s: %w", r.gvr.Resource, err)
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("list of %s: %w", r.gvr.Resource, err)
	}
	m.SetResourceVersion(localVersion(revision))
	return list, nil
}

// newBookmark returns the object of a bookmark event: only a resourceVersion, and an annotation after the last initial event.
func (r *resource) newBookmark(revision uint64, initialEnd bool) runtime.Object {
	obj := r.object()
	if m, err := meta.Accessor(obj); err == nil {
		m.SetResourceVersion(localVersion(revision))
		if initialEnd {
			m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(r.gvk())
	return obj
}
