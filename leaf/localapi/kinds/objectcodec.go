package kinds

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

// ObjectStamp is the data that accompanies an object's typed form while it is processed.
type ObjectStamp struct {
	Revision     uint64
	CloudVersion string // metadata.resourceVersion as the cloud sent it
}

// Decode returns the object as clients see it: with the local resourceVersion, and always with a UID, even while the cloud
// has not assigned one. Client code treats an object without a UID as one that does not exist.
func (r *Resource) Decode(e store.Entry) (runtime.Object, ObjectStamp, error) {
	obj, err := r.unmarshalStored(e.Object)
	if err != nil {
		return nil, ObjectStamp{}, fmt.Errorf("decode %s: %w", e.Key.Human(), err)
	}
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, ObjectStamp{}, fmt.Errorf("decode %s: %w", e.Key.Human(), err)
	}
	v := ObjectStamp{Revision: e.Revision, CloudVersion: m.GetResourceVersion()}
	m.SetResourceVersion(LocalVersion(e.Revision))
	if m.GetUID() == "" {
		m.SetUID(ProvisionalUID(e.Key))
	}
	m.SetManagedFields(nil)
	if !r.Schemaless {
		obj.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // the encoder sets it where clients expect it
	}
	if r.Decorate != nil {
		r.Decorate(obj)
	}
	return obj, v, nil
}

// unmarshalStored decodes an object in its stored form.
func (r *Resource) unmarshalStored(data []byte) (runtime.Object, error) {
	if r.StoredForm == nil {
		obj := r.Object()
		return obj, utiljson.Unmarshal(data, obj)
	}
	obj := r.StoredForm.object()
	if err := utiljson.Unmarshal(data, obj); err != nil {
		return nil, err
	}
	return r.StoredForm.toServed(obj), nil
}

// Encode reverses decode: it returns the JSON for the store and the report.
func (r *Resource) Encode(key wire.Key, obj runtime.Object, v ObjectStamp) ([]byte, string, error) {
	obj = obj.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, "", fmt.Errorf("encode %s: %w", key.Human(), err)
	}
	if m.GetUID() == ProvisionalUID(key) {
		m.SetUID("")
	}
	if err := r.RemoveProvisionalOwner(obj); err != nil {
		return nil, "", err
	}
	m.SetResourceVersion(v.CloudVersion)
	m.SetManagedFields(nil)
	if r.StoredForm != nil {
		obj = r.StoredForm.toStored(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(r.StoredGVR().GroupVersion().WithKind(r.Kind))
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, "", fmt.Errorf("encode %s: %w", key.Human(), err)
	}
	return data, string(m.GetUID()), nil
}

// RemoveProvisionalOwner removes an owner whose UID the cloud does not know: its garbage collector would delete the object.
func (r *Resource) RemoveProvisionalOwner(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("disown: %w", err)
	}
	m.SetOwnerReferences(slices.DeleteFunc(m.GetOwnerReferences(), func(o metav1.OwnerReference) bool {
		return o.Kind == "Node" && o.UID == ProvisionalUID(wire.Key{Resource: "nodes", Name: o.Name})
	}))
	return nil
}

// ProvisionalUID returns the UID served for an object created here while the cloud could not be asked. It depends on the
// name alone, so it is the same after a restart, and it is never sent.
func ProvisionalUID(key wire.Key) types.UID {
	return types.UID(uuid.NewSHA1(uuid.NameSpaceOID, []byte("frond.io/provisional/"+key.String())).String())
}

// ObjectKey returns the store's key of an object.
func (r *Resource) ObjectKey(namespace, name string) wire.Key {
	if !r.Namespaced {
		namespace = ""
	}
	return wire.Key{Group: r.StoredGVR().Group, Resource: r.GVR.Resource, Namespace: namespace, Name: name}
}

// BuildList puts objects into a new list of the resource.
func (r *Resource) BuildList(items []runtime.Object, revision uint64) (runtime.Object, error) {
	list := r.List()
	if err := meta.SetList(list, items); err != nil {
		return nil, fmt.Errorf("list of %s: %w", r.GVR.Resource, err)
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("list of %s: %w", r.GVR.Resource, err)
	}
	m.SetResourceVersion(LocalVersion(revision))
	return list, nil
}

// NewBookmark returns the object of a bookmark event: only a resourceVersion, and an annotation after the last initial event.
func (r *Resource) NewBookmark(revision uint64, initialEnd bool) runtime.Object {
	obj := r.Object()
	if m, err := meta.Accessor(obj); err == nil {
		m.SetResourceVersion(LocalVersion(revision))
		if initialEnd {
			m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
	}
	obj.GetObjectKind().SetGroupVersionKind(r.GVK())
	return obj
}

// ConvertToTable returns the table that kubectl prints of an object or a list, with the resource's own columns or with name and age.
func (r *Resource) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{Rows: []metav1.TableRow{}}
	add := func(o runtime.Object) error {
		m, err := meta.Accessor(o)
		if err != nil {
			return err
		}
		row := metav1.TableRow{Object: runtime.RawExtension{Object: o}}
		if r.cells != nil {
			row.Cells = r.cells(o)
		} else {
			row.Cells = []any{m.GetName(), formatAge(m.GetCreationTimestamp())}
		}
		if r.conditions != nil {
			row.Conditions = r.conditions(o)
		}
		table.Rows = append(table.Rows, row)
		return nil
	}
	if meta.IsListType(obj) {
		if err := meta.EachListItem(obj, add); err != nil {
			return nil, err
		}
	} else if err := add(obj); err != nil {
		return nil, err
	}
	if m, err := meta.ListAccessor(obj); err == nil {
		table.ResourceVersion, table.Continue, table.RemainingItemCount = m.GetResourceVersion(), m.GetContinue(), m.GetRemainingItemCount()
	} else if m, err := meta.CommonAccessor(obj); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	if o, _ := options.(*metav1.TableOptions); o == nil || !o.NoHeaders {
		table.ColumnDefinitions = r.columns
		if r.columns == nil {
			table.ColumnDefinitions = columnDefinitions("Name", "Age")
		}
	}
	return table, nil
}

// DecodeShared returns an object as decode does, and possibly the same one as another request: no caller may change it or anything in it.
// A caller that encodes it makes a copy first (shallowCopy, or that of a list), as an encoder writes the kind into the object.
func (r *Resource) DecodeShared(e store.Entry) (runtime.Object, error) {
	if r.DecodeCache == nil { // nor objects that are maps throughout: a copy of the top level shares the map
		obj, _, err := r.Decode(e)
		return obj, err
	}
	if obj := r.DecodeCache.lookup(e); obj != nil {
		return obj, nil
	}
	obj, _, err := r.Decode(e)
	if err == nil {
		r.DecodeCache.add(e, obj)
	}
	return obj, err
}
