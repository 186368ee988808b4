// Package nodewrite creates, changes and deletes the objects that the node owns: its Node and CSINode, the statuses of its pods, its leases
// and events.
//
// A report of a change is in the outbox before the change is in the store. After a crash between the two the kubelet writes again; a
// report is never lost. Reports of one object leave in the order of its writes, as each write holds the object's lock.
package nodewrite

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/completeness"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
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

// writeTimeout ends a write that the outbox or the store does not accept, on a disk that hangs. A write that the store has
// begun ends with the store's own limit. The kubelet retries. A write takes about 2 ms, behind a full attach some 100 ms.
const writeTimeout = 5 * time.Second

// leaseNamespace is the namespace of Kubernetes' node leases.
const leaseNamespace = "kube-node-lease"

// Writers is what the writers of all resources share. Its methods may be called concurrently.
type Writers struct {
	node     string
	cloud    *cloudcall.Client
	reporter Reporter
	complete *completeness.Evaluator
	locks    *objectstore.KeyLocks

	mu             sync.Mutex // guards leaseRenewedAt
	leaseRenewedAt time.Time
}

// New creates the Writers of a node.
func New(node string, cloud *cloudcall.Client, reporter Reporter, complete *completeness.Evaluator) *Writers {
	return &Writers{node: node, cloud: cloud, reporter: reporter, complete: complete, locks: objectstore.NewKeyLocks()}
}

// LockKey waits for an object's write lock and acquires it: until release, no request writes or reports the object.
func (s *Writers) LockKey(ctx context.Context, key wire.Key) (release func(), err error) {
	return s.locks.LockKey(ctx, key)
}

// LeaseRenewed returns when the kubelet last renewed the node's lease; zero if it has not since the start.
func (s *Writers) LeaseRenewed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaseRenewedAt
}

func (s *Writers) recordLeaseRenewal(key wire.Key) {
	if key.Namespace != leaseNamespace || key.Name != s.node {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaseRenewedAt = time.Now()
}

// Of returns the writer of a resource, or of one of its subresources.
func (s *Writers) Of(resource *kinds.Resource, subresource string, objects objectstore.Store) *ResourceWriter {
	return &ResourceWriter{shared: s, resource: resource, subresource: subresource, objects: objects}
}

// ResourceWriter writes the objects of one resource, or of one of its subresources. It is the REST storage of their writes.
type ResourceWriter struct {
	shared      *Writers
	resource    *kinds.Resource
	subresource string
	objects     objectstore.Store
}

// New returns an empty object of the resource.
func (w *ResourceWriter) New() runtime.Object { return w.resource.Object() }

// Create creates an object: in memory, in the cloud, or here while the cloud cannot be asked.
func (w *ResourceWriter) Create(ctx context.Context, obj runtime.Object, _ rest.ValidateObjectFunc, opts *metav1.CreateOptions) (runtime.Object, error) {
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
	key := w.resource.ObjectKey(request.NamespaceValue(ctx), m.GetName())
	if w.resource.Placement == kinds.InStore && key.Name != w.shared.node {
		return nil, apierrors.NewForbidden(w.resource.GVR.GroupResource(), key.Name,
			fmt.Errorf("gateway %s may create only its own", w.shared.node))
	}
	if err := w.validateWrite(key, obj, nil); err != nil {
		return nil, err
	}
	release, err := w.shared.LockKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer release()
	var revision uint64
	if held, err := w.objects.Get(key); err == nil {
		if w.resource.Placement == kinds.InMemory || len(opts.DryRun) > 0 {
			return nil, apierrors.NewAlreadyExists(w.resource.GVR.GroupResource(), key.Name)
		}
		revision = held.Revision
	}
	if len(opts.DryRun) > 0 {
		return obj, nil
	}
	if m.GetCreationTimestamp().Time.IsZero() {
		m.SetCreationTimestamp(metav1.Now())
	}
	if w.resource.Placement == kinds.InMemory {
		m.SetUID(types.UID(uuid.NewString()))
		return w.reportAndStore(ctx, key, obj, kinds.ObjectStamp{})
	}
	return w.registerObject(ctx, key, obj, revision)
}

// validateWrite refuses a write that the cloud would refuse as invalid.
func (w *ResourceWriter) validateWrite(key wire.Key, next, last runtime.Object) error {
	if w.resource.Validate == nil {
		return nil
	}
	if errs := w.resource.Validate(next, last); len(errs) > 0 {
		return apierrors.NewInvalid(w.resource.GVK().GroupKind(), key.Name, errs)
	}
	return nil
}

// registerObject creates the node's own Node or CSINode. The cloud decides if it can be asked. Otherwise the object is created here, is
// reported, and gets its UID when the cloud delivers it. An object that is already stored, at a revision other than 0, may have been
// deleted in Kubernetes, as the cloud keeps the objects of a deleted Node for a while: only the cloud can replace it.
func (w *ResourceWriter) registerObject(ctx context.Context, key wire.Key, obj runtime.Object, revision uint64) (runtime.Object, error) {
	made := w.resource.Object()
	posted := w.withKind(obj)
	if err := w.resource.RemoveProvisionalOwner(posted); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	err := w.shared.cloud.Object(ctx, "POST", w.resource.CloudPath(w.resource.ObjectKey(key.Namespace, "")), posted, made)
	switch {
	case err == nil:
		return w.storeCloudObject(ctx, key, made, revision)
	case revision != 0:
		return nil, apierrors.NewAlreadyExists(w.resource.GVR.GroupResource(), key.Name)
	case apierrors.IsAlreadyExists(err):
		if getErr := w.shared.cloud.Object(ctx, "GET", w.resource.CloudPath(key), nil, made); getErr != nil {
			return nil, getErr
		}
		if _, putErr := w.storeCloudObject(ctx, key, made, 0); putErr != nil {
			return nil, putErr
		}
		return nil, err // the client then reads it, and reconciles
	case !respond.IsOffline(err):
		return nil, err
	}
	return w.reportAndStore(ctx, key, obj, kinds.ObjectStamp{})
}

// withKind returns obj with its kind, as other programs expect it.
func (w *ResourceWriter) withKind(obj runtime.Object) runtime.Object {
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(w.resource.GVK())
	return obj
}

// storeCloudObject stores an object of the cloud without reporting it back.
func (w *ResourceWriter) storeCloudObject(ctx context.Context, key wire.Key, obj runtime.Object, revision uint64) (runtime.Object, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	data, _, err := w.resource.Encode(key, obj, kinds.ObjectStamp{CloudVersion: m.GetResourceVersion()})
	if err != nil {
		return nil, err
	}
	entry, err := w.objects.Put(ctx, key, data, &revision)
	if errors.Is(err, store.ErrConflict) { // it has been delivered meanwhile, which is as good
		entry, err = w.objects.Get(key)
	}
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	obj, _, err = w.resource.Decode(entry)
	return obj, err
}

// reportAndStore reports a new object and then stores it.
func (w *ResourceWriter) reportAndStore(ctx context.Context, key wire.Key, obj runtime.Object, v kinds.ObjectStamp) (runtime.Object, error) {
	d, err := w.newDraft(key, obj, v)
	if err != nil {
		return nil, err
	}
	if err := w.reportWrite(ctx, d.message); err != nil {
		return nil, err
	}
	return w.putDraft(ctx, d)
}

// writeDraft is an object ready to be reported and stored.
type writeDraft struct {
	message  wire.Message
	revision uint64 // that it replaces; 0 for none
}

func (w *ResourceWriter) newDraft(key wire.Key, obj runtime.Object, v kinds.ObjectStamp) (*writeDraft, error) {
	data, uid, err := w.resource.Encode(key, obj, v)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &writeDraft{wire.Message{Key: key, Op: wire.Apply, UID: uid, Version: v.CloudVersion, Object: data}, v.Revision}, nil
}

func (w *ResourceWriter) putDraft(ctx context.Context, d *writeDraft) (runtime.Object, error) {
	key := d.message.Key
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	entry, err := w.objects.Put(ctx, key, d.message.Object, &d.revision)
	switch {
	case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound):
		return nil, apierrors.NewConflict(w.resource.GVR.GroupResource(), key.Name, errChanged)
	case err != nil:
		return nil, apierrors.NewInternalError(err)
	}
	if w.resource.GVR.Resource == "leases" {
		w.shared.recordLeaseRenewal(key)
	}
	obj, _, err := w.resource.Decode(entry)
	return obj, err
}

var errChanged = errors.New("the object has been modified; please apply your changes to the latest version and try again")

func (w *ResourceWriter) reportWrite(ctx context.Context, m wire.Message) error {
	m.Node, m.Time = w.shared.node, time.Now()
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	var err error
	switch w.resource.Sink {
	case kinds.ToReports:
		err = w.shared.reporter.Report(ctx, m)
	case kinds.ToEvents:
		err = w.shared.reporter.ReportEvent(ctx, m)
	case kinds.ToNobody:
	}
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("report %s: %w", m.Key.Human(), err))
	}
	return nil
}
