package devicestatus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// writesPerSecond bounds the writes of one cloudcore about devices, so that these leave room for pods.
	writesPerSecond, writesBurst = 100, 200
	// maxStatus bounds a reported object: the record of a device has at most 256 KiB.
	maxStatus = 512 << 10
)

// LatestCheck asks the stream's leader whether a report is still the newest of its object.
type LatestCheck func(ctx context.Context, m wire.Message) (bool, error)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{devices.Group}, Resources: []string{devices.DevicesResource}, Verbs: []string{"get"}},
		{APIGroups: []string{devices.Group}, Resources: []string{devices.DeviceStatusesResource}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
	}
}

// Applier applies the reports of devices. It is stateless and may be called concurrently.
type Applier struct {
	lookup   *Lookup
	statuses dynamic.NamespaceableResourceInterface
	isLatest LatestCheck
	limiter  *rate.Limiter
	log      *zap.Logger
	applied  *prometheus.CounterVec
	dropped  *prometheus.CounterVec
}

// New returns an Applier that writes with kube, which has cloudcore's rights.
func New(lookup *Lookup, kube dynamic.Interface, isLatest LatestCheck, metrics prometheus.Registerer, log *zap.Logger) *Applier {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{Namespace: "frond", Subsystem: "devicestatus", Name: name, Help: help}, []string{label})
	}
	return &Applier{
		lookup: lookup, statuses: kube.Resource(gvr(devices.DeviceStatusesResource)), isLatest: isLatest,
		limiter: rate.NewLimiter(writesPerSecond, writesBurst), log: log,
		applied: counter("writes_total", "Writes of DeviceStatus by what was done: patch, create, replace (another Device had the name), unknown (the gateway is away), restore (it was heard again).", "action"),
		dropped: counter("dropped_total", "Reports of devices that were rightly not applied, by reason: foreign (not the node's device), moved (not the node's any more), uid (of an earlier Device of the name), replaced (a newer one is in the stream).", "reason"),
	}
}

// Handles reports whether a report is of a device.
func Handles(key wire.Key) bool {
	return key.Group == devices.Group && key.Resource == devices.DeviceStatusesResource
}

// Handle applies one report. It returns nil if the report is applied or rightly dropped. An error that wraps wire.ErrPermanent can never succeed; one
// that wraps wire.ErrRefused is Kubernetes' refusal; any other may succeed later.
func (a *Applier) Handle(ctx context.Context, m wire.Message) error {
	status, err := decode(m)
	if err != nil {
		return err
	}
	device, found, err := a.lookup.OfNode(ctx, m.Node, types.NamespacedName{Namespace: m.Key.Namespace, Name: m.Key.Name})
	switch {
	case errors.Is(err, ErrBusy):
		return errors.Join(wire.ErrRefused, err)
	case err != nil:
		return classify(err)
	case !found && m.UID != "" && string(device.UID) == m.UID:
		return a.drop(m, "moved") // its gateway knew the UID: it is late, no foreign one
	case !found:
		return a.drop(m, "foreign")
	case string(device.UID) != m.UID:
		return a.drop(m, "uid")
	}
	if last, err := a.isLatest(ctx, m); err != nil {
		return err
	} else if !last {
		return a.drop(m, "replaced")
	}
	if err := a.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("status of %s: %w", device.ID, err)
	}
	if err := a.write(ctx, device, status); err != nil {
		return fmt.Errorf("status of device %s from %s: %w", device.ID, m.Node, classify(err))
	}
	return nil
}

func (a *Applier) drop(m wire.Message, reason string) error {
	a.dropped.WithLabelValues(reason).Inc()
	a.log.Debug("report of a device dropped", zap.String("node", m.Node), zap.String("object", m.Key.Human()), zap.String("reason", reason))
	return nil
}

// decode returns the reported status. Its errors wrap wire.ErrPermanent.
func decode(m wire.Message) (devices.DeviceStatusReport, error) {
	var reported devices.DeviceStatus
	switch {
	case m.Op != wire.Apply:
		return reported.Status, fmt.Errorf("%w: %s of %s", wire.ErrPermanent, m.Op, m.Key.Human())
	case len(m.Object) > maxStatus:
		return reported.Status, fmt.Errorf("%w: status of %d bytes, at most %d", wire.ErrPermanent, len(m.Object), maxStatus)
	}
	if err := json.Unmarshal(m.Object, &reported); err != nil {
		return reported.Status, fmt.Errorf("%w: %w", wire.ErrPermanent, err)
	}
	if reported.Name != m.Key.Name || reported.Namespace != m.Key.Namespace {
		return reported.Status, fmt.Errorf("%w: object is %s/%s", wire.ErrPermanent, reported.Namespace, reported.Name)
	}
	return reported.Status, nil
}

// classify marks the apiserver's answers as reports' are (package reports).
func classify(err error) error {
	switch {
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err):
		return errors.Join(wire.ErrPermanent, err)
	case apierrors.ReasonForError(err) == metav1.StatusReasonUnknown, apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsConflict(err):
		return err
	default:
		return errors.Join(wire.ErrRefused, err)
	}
}

// operation is one step of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// manager is the field manager of these writes.
const manager = names.ManagerCloudcore

// write replaces the status of a device by one patch, whatever it was. It makes the object if it is missing, and again if it was another Device's.
func (a *Applier) write(ctx context.Context, device Device, status devices.DeviceStatusReport) error {
	patch, err := json.Marshal([]operation{
		{"test", "/metadata/ownerReferences/0/uid", device.UID}, {"add", "/status", status},
	})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	in := a.statuses.Namespace(device.ID.Namespace)
	_, err = in.Patch(ctx, device.ID.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: manager})
	switch {
	case err == nil:
		a.applied.WithLabelValues("patch").Inc()
		return nil
	case apierrors.IsNotFound(err):
		return a.create(ctx, device, status, "create")
	case !apierrors.IsInvalid(err):
		return err
	}
	// Another Device's, or made by somebody else: that the test failed is not told apart from a status that is refused.
	present, err := in.Get(ctx, device.ID.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if owners := present.GetOwnerReferences(); len(owners) > 0 && owners[0].UID == device.UID {
		return fmt.Errorf("%w: the status is refused", wire.ErrPermanent)
	}
	uid := present.GetUID()
	if err := in.Delete(ctx, device.ID.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return a.create(ctx, device, status, "replace")
}

func (a *Applier) create(ctx context.Context, device Device, status devices.DeviceStatusReport, action string) error {
	yes := true
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&devices.DeviceStatus{
		TypeMeta: metav1.TypeMeta{APIVersion: devices.Group + "/" + devices.Version, Kind: "DeviceStatus"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: device.ID.Namespace, Name: device.ID.Name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: devices.Group + "/" + devices.Version, Kind: devices.DeviceKind, Name: device.ID.Name, UID: device.UID, Controller: &yes,
			}},
		},
		Status: status,
	})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	_, err = a.statuses.Namespace(device.ID.Namespace).Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{FieldManager: manager})
	if err == nil {
		a.applied.WithLabelValues(action).Inc()
	}
	if apierrors.IsAlreadyExists(err) {
		return apierrors.NewConflict(gvr(devices.DeviceStatusesResource).GroupResource(), device.ID.Name, err) // tried again
	}
	return err
}
