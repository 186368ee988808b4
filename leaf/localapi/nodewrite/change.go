package nodewrite

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/store"
)

// maxWriteAttempts is how often a write is tried while the cloud changes the object at the same time. Each attempt competes
// with one delivery at the store; only a pod that changes with every delivery needs more than two.
const maxWriteAttempts = 100

// Update serves PUT and PATCH, of the object or of its status.
func (w *ResourceWriter) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc,
	_ rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	key := w.resource.ObjectKey(request.NamespaceValue(ctx), name)
	release, err := w.shared.LockKey(ctx, key)
	if err != nil {
		return nil, false, err
	}
	defer release()
	d, obj, err := w.computeChange(ctx, key, info)
	if err != nil || d == nil || len(opts.DryRun) > 0 {
		return obj, false, err
	}
	// The report comes first: after a crash between the two the client writes again. In the other order the report could be lost.
	if err := w.reportWrite(ctx, d.message); err != nil {
		return nil, false, err
	}
	obj, err = w.putDraft(ctx, d)
	for attempt := 1; apierrors.IsConflict(err) && attempt < maxWriteAttempts; attempt++ {
		var again error
		if d, obj, again = w.computeChange(ctx, key, info); again != nil || d == nil {
			return obj, false, again
		}
		if obj, err = w.putDraft(ctx, d); err == nil {
			err = w.reportWrite(ctx, d.message) // the same change, on the newer object
		}
	}
	return obj, false, err
}

// computeChange applies a write to the present object. The draft is nil if nothing changes.
func (w *ResourceWriter) computeChange(ctx context.Context, key wire.Key, info rest.UpdatedObjectInfo) (*writeDraft, runtime.Object, error) {
	entry, err := w.loadPresent(key)
	if err != nil {
		return nil, nil, err
	}
	last, v, err := w.resource.Decode(entry)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	next, err := info.UpdatedObject(ctx, last.DeepCopyObject())
	if err != nil {
		return nil, nil, err
	}
	was, err := meta.Accessor(last)
	if err != nil {
		return nil, nil, err
	}
	is, err := meta.Accessor(next)
	if err != nil {
		return nil, nil, err
	}
	if p := info.Preconditions(); p != nil && p.UID != nil && *p.UID != "" && *p.UID != was.GetUID() {
		return nil, nil, w.uidConflict(key.Name, *p.UID, was.GetUID())
	}
	if uid := is.GetUID(); uid != "" && uid != was.GetUID() {
		return nil, nil, apierrors.NewInvalid(w.resource.GVK().GroupKind(), key.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "uid"), string(uid), "field is immutable"),
		})
	}
	if rv := is.GetResourceVersion(); rv != "" && rv != was.GetResourceVersion() {
		return nil, nil, apierrors.NewConflict(w.resource.GVR.GroupResource(), key.Name, errChanged)
	}
	kinds.PreserveMeta(is, was)
	is.SetResourceVersion(was.GetResourceVersion())
	if w.resource.Preserve != nil {
		w.resource.Preserve(next, last, w.subresource)
	}
	next.GetObjectKind().SetGroupVersionKind(last.GetObjectKind().GroupVersionKind())
	if err := w.validateWrite(key, next, last); err != nil {
		return nil, nil, err
	}
	if equality.Semantic.DeepEqual(last, next) && w.resource.Placement == kinds.InStore {
		return nil, next, nil
	}
	d, err := w.newDraft(key, next, v)
	return d, next, err
}

// loadPresent returns the present state that a write starts from.
func (w *ResourceWriter) loadPresent(key wire.Key) (store.Entry, error) {
	entry, err := w.objects.Get(key)
	switch {
	case err == nil:
		return entry, nil
	case !errors.Is(err, store.ErrNotFound):
		return entry, apierrors.NewInternalError(err)
	case w.shared.complete.ProvesAbsence(w.resource, key):
		return entry, apierrors.NewNotFound(w.resource.GVR.GroupResource(), key.Name)
	default:
		return entry, apierrors.NewServiceUnavailable(key.Human() + " is not known on this gateway yet")
	}
}

func (w *ResourceWriter) uidConflict(name string, wanted, found types.UID) error {
	return apierrors.NewConflict(w.resource.GVR.GroupResource(), name,
		fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", wanted, found))
}

// Delete deletes an object. For a pod the node performs only the last step: the deletion after its containers are gone. Any
// other deletion of a pod requests a grace period, which only the cloud can grant.
func (w *ResourceWriter) Delete(ctx context.Context, name string, _ rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	key := w.resource.ObjectKey(request.NamespaceValue(ctx), name)
	if w.resource.Placement == kinds.InStore && (opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds != 0) && !w.IsLocalOnly(key) {
		obj := w.resource.Object()
		return obj, false, w.shared.cloud.Object(ctx, "DELETE", w.resource.CloudPath(key), opts, obj)
	}
	release, err := w.shared.LockKey(ctx, key)
	if err != nil {
		return nil, false, err
	}
	defer release()
	entry, err := w.loadPresent(key)
	if err != nil {
		return nil, false, err
	}
	obj, v, err := w.resource.Decode(entry)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	if p := opts.Preconditions; p != nil {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, false, err
		}
		if p.UID != nil && *p.UID != m.GetUID() {
			return nil, false, w.uidConflict(name, *p.UID, m.GetUID())
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != kinds.LocalVersion(entry.Revision) {
			return nil, false, apierrors.NewConflict(w.resource.GVR.GroupResource(), name, errChanged)
		}
	}
	if err := markDeleted(obj); err != nil || len(opts.DryRun) > 0 {
		return obj, true, err
	}
	// The deletion replaces a status that still waits, so it carries the last one: exit codes, for example.
	if !w.IsLocalOnly(key) {
		if err := w.reportWrite(ctx, wire.Message{Key: key, Op: wire.Delete, UID: entry.UID, Version: v.CloudVersion, Object: entry.Object}); err != nil {
			return nil, false, err
		}
	}
	_, err = w.objects.Delete(ctx, key, entry.UID, nil)
	switch {
	case errors.Is(err, store.ErrConflict):
		return nil, false, apierrors.NewConflict(w.resource.GVR.GroupResource(), name, errChanged)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, false, apierrors.NewInternalError(err)
	}
	return obj, true, nil
}

// IsLocalOnly reports whether an object was registered here while the cloud could not be asked, and the cloud has not
// delivered it since. If its report still creates one in the cloud, that object is delivered.
func (w *ResourceWriter) IsLocalOnly(key wire.Key) bool {
	if w.resource.Placement != kinds.InStore || w.resource.Completeness != kinds.Authoritative || w.resource.Namespaced {
		return false // the node registers its Node and its CSINode
	}
	entry, err := w.objects.Get(key)
	return err == nil && entry.UID == ""
}

// markDeleted sets the fields of a deletion's returned object as an apiserver does.
func markDeleted(obj runtime.Object) error {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err
	}
	if m.GetDeletionTimestamp() == nil {
		now, none := metav1.Now(), int64(0)
		m.SetDeletionTimestamp(&now)
		m.SetDeletionGracePeriodSeconds(&none)
		if m.GetGeneration() > 0 {
			m.SetGeneration(m.GetGeneration() + 1)
		}
	}
	return nil
}
