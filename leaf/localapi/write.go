package localapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

// Reporter sends the node's changes to the cloud. Both methods return when the message is safe from a crash.
type Reporter interface {
	// Report takes the whole state of one of the node's objects; a later one of the same object replaces it.
	Report(ctx context.Context, message wire.Message) error
	// ReportEvent takes a Kubernetes event; the oldest may be dropped when too many wait.
	ReportEvent(ctx context.Context, message wire.Message) error
}

// maxWriteAttempts is how often a write is tried while the cloud changes the object at the same time. Each attempt competes
// with one delivery at the store; only a pod that changes with every delivery needs more than two.
const maxWriteAttempts = 100

// writeTimeout ends a write that the outbox or the store does not accept, on a disk that hangs. A write that the store has
// begun ends with the store's own limit. The kubelet retries. A write takes about 2 ms, behind a full attach some 100 ms.
const writeTimeout = 5 * time.Second

// Create creates an object: in memory, in the cloud, or here while the cloud cannot be asked.
func (e *endpoint) Create(ctx context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(names.SimpleNameGenerator.GenerateName(m.GetGenerateName()))
	}
	if m.GetName() == "" {
		return nil, apierrors.NewBadRequest("name or generateName must be provided")
	}
	key := e.resource.ObjectKey(request.NamespaceValue(ctx), m.GetName())
	if e.resource.Placement == kinds.InStore && key.Name != e.server.cfg.Node {
		return nil, apierrors.NewForbidden(e.resource.GVR.GroupResource(), key.Name,
			fmt.Errorf("gateway %s may create only its own", e.server.cfg.Node))
	}
	if err := e.validateWrite(key, obj, nil); err != nil {
		return nil, err
	}
	release, err := e.server.keyLocks.LockKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer release()
	var revision uint64
	if held, err := e.objects.Get(key); err == nil {
		if e.resource.Placement == kinds.InMemory || len(opts.DryRun) > 0 {
			return nil, apierrors.NewAlreadyExists(e.resource.GVR.GroupResource(), key.Name)
		}
		revision = held.Revision
	}
	if len(opts.DryRun) > 0 {
		return obj, nil
	}
	if m.GetCreationTimestamp().Time.IsZero() {
		m.SetCreationTimestamp(metav1.Now())
	}
	if e.resource.Placement == kinds.InMemory {
		m.SetUID(types.UID(uuid.NewString()))
		return e.reportAndStore(ctx, key, obj, kinds.ObjectStamp{})
	}
	return e.registerObject(ctx, key, obj, revision)
}

// validateWrite refuses a write that the cloud would refuse as invalid.
func (e *endpoint) validateWrite(key wire.Key, next, last runtime.Object) error {
	if e.resource.Validate == nil {
		return nil
	}
	if errs := e.resource.Validate(next, last); len(errs) > 0 {
		return apierrors.NewInvalid(e.resource.GVK().GroupKind(), key.Name, errs)
	}
	return nil
}

// registerObject creates the node's own Node or CSINode. The cloud decides if it can be asked. Otherwise the object is created here, is
// reported, and gets its UID when the cloud delivers it. An object that is already stored, at a revision other than 0, may have been
// deleted in Kubernetes, as the cloud keeps the objects of a deleted Node for a while: only the cloud can replace it.
func (e *endpoint) registerObject(ctx context.Context, key wire.Key, obj runtime.Object, revision uint64) (runtime.Object, error) {
	made := e.resource.Object()
	posted := e.withKind(obj)
	if err := e.resource.RemoveProvisionalOwner(posted); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	err := e.server.cloud.Object(ctx, "POST", e.resource.CloudPath(e.resource.ObjectKey(key.Namespace, "")), posted, made)
	switch {
	case err == nil:
		return e.storeCloudObject(ctx, key, made, revision)
	case revision != 0:
		return nil, apierrors.NewAlreadyExists(e.resource.GVR.GroupResource(), key.Name)
	case apierrors.IsAlreadyExists(err):
		if getErr := e.server.cloud.Object(ctx, "GET", e.resource.CloudPath(key), nil, made); getErr != nil {
			return nil, getErr
		}
		if _, putErr := e.storeCloudObject(ctx, key, made, 0); putErr != nil {
			return nil, putErr
		}
		return nil, err // the client then reads it, and reconciles
	case !respond.IsOffline(err):
		return nil, err
	}
	return e.reportAndStore(ctx, key, obj, kinds.ObjectStamp{})
}

// withKind returns obj with its kind, as other programs expect it.
func (e *endpoint) withKind(obj runtime.Object) runtime.Object {
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(e.resource.GVK())
	return obj
}

// storeCloudObject stores an object of the cloud without reporting it back.
func (e *endpoint) storeCloudObject(ctx context.Context, key wire.Key, obj runtime.Object, revision uint64) (runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	data, _, err := e.resource.Encode(key, obj, kinds.ObjectStamp{CloudVersion: m.GetResourceVersion()})
	if err != nil {
		return nil, err
	}
	entry, err := e.objects.Put(ctx, key, data, &revision)
	if errors.Is(err, store.ErrConflict) { // it has been delivered meanwhile, which is as good
		entry, err = e.objects.Get(key)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	obj, _, err = e.resource.Decode(entry)
	return obj, err
}

// reportAndStore reports a new object and then stores it.
func (e *endpoint) reportAndStore(ctx context.Context, key wire.Key, obj runtime.Object, v kinds.ObjectStamp) (runtime.Object, error) {
	d, err := e.newDraft(key, obj, v)
	if err != nil {
		return nil, err
	}
	if err := e.reportWrite(ctx, d.message); err != nil {
		return nil, err
	}
	return e.putDraft(ctx, d)
}

// writeDraft is an object ready to be reported and stored.
type writeDraft struct {
	message  wire.Message
	revision uint64 // that it replaces; 0 for none
}

func (e *endpoint) newDraft(key wire.Key, obj runtime.Object, v kinds.ObjectStamp) (*writeDraft, error) {
	data, uid, err := e.resource.Encode(key, obj, v)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &writeDraft{wire.Message{Key: key, Op: wire.Apply, UID: uid, Version: v.CloudVersion, Object: data}, v.Revision}, nil
}

func (e *endpoint) putDraft(ctx context.Context, d *writeDraft) (runtime.Object, error) {
	key := d.message.Key
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	entry, err := e.objects.Put(ctx, key, d.message.Object, &d.revision)
	switch {
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound):
		return nil, apierrors.NewConflict(e.resource.GVR.GroupResource(), key.Name, errChanged)
	case err != nil:
		return nil, apierrors.NewInternalError(err)
	}
	if e.resource.GVR.Resource == "leases" {
		e.server.recordLeaseRenewal(key)
	}
	obj, _, err := e.resource.Decode(entry)
	return obj, err
}

var errChanged = errors.New("the object has been modified; please apply your changes to the latest version and try again")

func (e *endpoint) reportWrite(ctx context.Context, m wire.Message) error {
	m.Node, m.Time = e.server.cfg.Node, time.Now()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var err error
	switch e.resource.Sink {
	case kinds.ToReports:
		err = e.server.reporter.Report(ctx, m)
	case kinds.ToEvents:
		err = e.server.reporter.ReportEvent(ctx, m)
	case kinds.ToNobody:
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("report %s: %w", m.Key.Human(), err))
	}
	return nil
}

// Update serves PUT and PATCH, of the object or of its status.
func (e *endpoint) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, _ rest.ValidateObjectFunc,
	_ rest.ValidateObjectUpdateFunc, _ bool, opts *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	key := e.resource.ObjectKey(request.NamespaceValue(ctx), name)
	release, err := e.server.keyLocks.LockKey(ctx, key)
	if err != nil {
		return nil, false, err
	}
	defer release()
	d, obj, err := e.computeChange(ctx, key, info)
	if err != nil || d == nil || len(opts.DryRun) > 0 {
		return obj, false, err
	}
	// The report comes first: after a crash between the two the client writes again. In the other order the report could be lost.
	if err := e.reportWrite(ctx, d.message); err != nil {
		return nil, false, err
	}
	obj, err = e.putDraft(ctx, d)
	for attempt := 1; apierrors.IsConflict(err) && attempt < maxWriteAttempts; attempt++ {
		var again error
		if d, obj, again = e.computeChange(ctx, key, info); again != nil || d == nil {
			return obj, false, again
		}
		if obj, err = e.putDraft(ctx, d); err == nil {
			err = e.reportWrite(ctx, d.message) // the same change, on the newer object
		}
	}
	return obj, false, err
}

// computeChange applies a write to the present object. The draft is nil if nothing changes.
func (e *endpoint) computeChange(ctx context.Context, key wire.Key, info rest.UpdatedObjectInfo) (*writeDraft, runtime.Object, error) {
	entry, err := e.loadPresent(key)
	if err != nil {
		return nil, nil, err
	}
	last, v, err := e.resource.Decode(entry)
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
		return nil, nil, e.uidConflict(key.Name, *p.UID, was.GetUID())
	}
	if uid := is.GetUID(); uid != "" && uid != was.GetUID() {
		return nil, nil, apierrors.NewInvalid(e.resource.GVK().GroupKind(), key.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "uid"), string(uid), "field is immutable"),
		})
	}
	if rv := is.GetResourceVersion(); rv != "" && rv != was.GetResourceVersion() {
		return nil, nil, apierrors.NewConflict(e.resource.GVR.GroupResource(), key.Name, errChanged)
	}
	kinds.PreserveMeta(is, was)
	is.SetResourceVersion(was.GetResourceVersion())
	if e.resource.Preserve != nil {
		e.resource.Preserve(next, last, e.subresource)
	}
	next.GetObjectKind().SetGroupVersionKind(last.GetObjectKind().GroupVersionKind())
	if err := e.validateWrite(key, next, last); err != nil {
		return nil, nil, err
	}
	if equality.Semantic.DeepEqual(last, next) && e.resource.Placement == kinds.InStore {
		return nil, next, nil
	}
	d, err := e.newDraft(key, next, v)
	return d, next, err
}

// loadPresent returns the present state that a write starts from.
func (e *endpoint) loadPresent(key wire.Key) (store.Entry, error) {
	entry, err := e.objects.Get(key)
	switch {
	case err == nil:
		return entry, nil
	case !errors.Is(err, store.ErrNotFound):
		return entry, apierrors.NewInternalError(err)
	case e.provesAbsence(key):
		return entry, e.notFound(key.Name)
	default:
		return entry, apierrors.NewServiceUnavailable(key.Human() + " is not known on this gateway yet")
	}
}

func (e *endpoint) uidConflict(name string, wanted, found types.UID) error {
	return apierrors.NewConflict(e.resource.GVR.GroupResource(), name,
		fmt.Errorf("precondition failed: UID in precondition: %s, UID in object meta: %s", wanted, found))
}

// Delete deletes an object. For a pod the node performs only the last step: the deletion after its containers are gone. Any
// other deletion of a pod requests a grace period, which only the cloud can grant.
func (e *endpoint) Delete(ctx context.Context, name string, _ rest.ValidateObjectFunc, opts *metav1.DeleteOptions) (runtime.Object, bool, error) {
	key := e.resource.ObjectKey(request.NamespaceValue(ctx), name)
	if e.resource.Placement == kinds.InStore && (opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds != 0) && !e.isLocalOnly(key) {
		obj := e.resource.Object()
		return obj, false, e.server.cloud.Object(ctx, "DELETE", e.resource.CloudPath(key), opts, obj)
	}
	release, err := e.server.keyLocks.LockKey(ctx, key)
	if err != nil {
		return nil, false, err
	}
	defer release()
	entry, err := e.loadPresent(key)
	if err != nil {
		return nil, false, err
	}
	obj, v, err := e.resource.Decode(entry)
	if err != nil {
		return nil, false, apierrors.NewInternalError(err)
	}
	if p := opts.Preconditions; p != nil {
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, false, err
		}
		if p.UID != nil && *p.UID != m.GetUID() {
			return nil, false, e.uidConflict(name, *p.UID, m.GetUID())
		}
		if p.ResourceVersion != nil && *p.ResourceVersion != kinds.LocalVersion(entry.Revision) {
			return nil, false, apierrors.NewConflict(e.resource.GVR.GroupResource(), name, errChanged)
		}
	}
	if err := markDeleted(obj); err != nil || len(opts.DryRun) > 0 {
		return obj, true, err
	}
	// The deletion replaces a status that still waits, so it carries the last one: exit codes, for example.
	if !e.isLocalOnly(key) {
		if err := e.reportWrite(ctx, wire.Message{Key: key, Op: wire.Delete, UID: entry.UID, Version: v.CloudVersion, Object: entry.Object}); err != nil {
			return nil, false, err
		}
	}
	_, err = e.objects.Delete(ctx, key, entry.UID, nil)
	switch {
	case errors.Is(err, store.ErrConflict):
		return nil, false, apierrors.NewConflict(e.resource.GVR.GroupResource(), name, errChanged)
	case err != nil && !errors.Is(err, store.ErrNotFound):
		return nil, false, apierrors.NewInternalError(err)
	}
	return obj, true, nil
}

// isLocalOnly reports whether an object was registered here while the cloud could not be asked, and the cloud has not
// delivered it since. If its report still creates one in the cloud, that object is delivered.
func (e *endpoint) isLocalOnly(key wire.Key) bool {
	if e.resource.Placement != kinds.InStore || e.resource.Completeness != kinds.Authoritative || e.resource.Namespaced {
		return false // the node registers its Node and its CSINode
	}
	entry, err := e.objects.Get(key)
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
