package reports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// LatestCheck asks the stream's leader whether a report is still the newest of its object.
type LatestCheck func(ctx context.Context, m wire.Message) (bool, error)

// Config configures an Applier. The zero value works.
type Config struct {
	// OnOvertaken is called for a report that was written although a newer one of its object had arrived meanwhile. The
	// newer one may have found nothing to write, as Kubernetes still held the state that it reports, so the node must
	// be asked to report again. nil: no call.
	OnOvertaken func(m wire.Message)
	// Addressing configures the addresses by which the cloud reaches nodes.
	Addressing NodeAddressing
	// Protected are the namespaces in which no mirror pod and no event of a node is created.
	Protected controllers.ProtectedNamespaces
	// Metrics registers the metrics; nil: they are kept and not exposed.
	Metrics prometheus.Registerer
}

// Applier applies reports. It is stateless and may be called concurrently.
type Applier struct {
	pods     podReports
	nodes    nodeReports
	csiNodes csiNodeReports
	events   eventReports
}

// target is what the handlers of all kinds of reports share: where they read and write, and how they count the result.
type target struct {
	// cached reads from memory and may be behind.
	cached client.Reader
	// own uses cloudcore's rights and only reads; node acts as the node in the context.
	own, node   kubernetes.Interface
	isLatest    LatestCheck
	onOvertaken func(m wire.Message)
	addressing  NodeAddressing
	protected   controllers.ProtectedNamespaces
	log         *zap.Logger
	applied     *prometheus.CounterVec
	dropped     *prometheus.CounterVec
}

// New creates an Applier. own uses cloudcore's rights; node acts as the node in the context (Impersonating). cached must
// serve Pods and Nodes from an informer's memory.
func New(cfg Config, own, node kubernetes.Interface, cached client.Reader, stillLast LatestCheck, log *zap.Logger) *Applier {
	f := func(name, help string, labels ...string) *prometheus.CounterVec {
		return promauto.With(cfg.Metrics).NewCounterVec(prometheus.CounterOpts{Name: "frond_reports_" + name, Help: help}, labels)
	}
	t := &target{
		cached: cached, own: own, node: node, isLatest: stillLast, onOvertaken: cfg.OnOvertaken, addressing: cfg.Addressing, protected: cfg.Protected, log: log,
		applied: f("applied_total", "Reports applied to Kubernetes, by resource and what was done.", "resource", "action"),
		dropped: f("dropped_total", "Reports rightly not applied, by resource and reason.", "resource", "reason"),
	}
	return &Applier{pods: podReports{t}, nodes: nodeReports{t}, csiNodes: csiNodeReports{t}, events: eventReports{t}}
}

// The reasons for dropping a report; the values of the metric's label.
const (
	dropForeign     = "foreign"     // about an object that is not the node's
	dropOtherUID    = "uid"         // about an earlier object of that name
	dropGone        = "gone"        // its object no longer exists
	dropReplaced    = "replaced"    // a newer report of the object is in the stream, or was handled
	dropUnchanged   = "unchanged"   // Kubernetes holds it already
	dropRunning     = "running"     // the end of a pod that was not deleted
	dropTerminating = "terminating" // an event in a namespace that is being deleted
	dropProtected   = "protected"   // a mirror pod or an event in a protected namespace
)

// Handle applies one report. It returns nil if the report is applied or rightly dropped. An error that wraps
// wire.ErrPermanent can never succeed; one that wraps wire.ErrRefused is Kubernetes' refusal of this report; any other
// may succeed later.
func (a *Applier) Handle(ctx context.Context, m wire.Message) error {
	ctx = WithNode(ctx, m.Node)
	var handle func(context.Context, wire.Message) error
	switch {
	case m.Key.Resource == "pods" && m.Key.Group == "" && m.Op == wire.Apply:
		handle = a.pods.applyPodStatus
	case m.Key.Resource == "pods" && m.Key.Group == "" && m.Op == wire.Delete:
		handle = a.pods.applyPodEnd
	case m.Key.Resource == "nodes" && m.Key.Group == "" && m.Op == wire.Apply:
		handle = a.nodes.applyNodeStatus
	case m.Key.Resource == "csinodes" && m.Op == wire.Apply:
		handle = a.csiNodes.applyCSINode
	case m.Key.Resource == "events" && m.Op == wire.Apply:
		handle = a.events.applyEvent
	default:
		return fmt.Errorf("%s of %s: %w", m.Op, m.Key.Human(), wire.ErrPermanent)
	}
	if err := handle(ctx, m); err != nil {
		return fmt.Errorf("%s of %s from %s: %w", m.Op, m.Key.Human(), m.Node, classifyError(err))
	}
	return nil
}

// classifyError marks errors of the apiserver that would recur at every retry as permanent, and its other answers as
// refused. Without an answer, or with one that asks to retry, the apiserver counts as unavailable for all reports.
func classifyError(err error) error {
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

func (t *target) dropReport(m wire.Message, reason string) error {
	t.dropped.WithLabelValues(m.Key.Resource, reason).Inc()
	t.log.Debug("report dropped", zap.String("node", m.Node), zap.String("object", m.Key.Human()), zap.String("reason", reason))
	return nil
}

func (t *target) recordApplied(m wire.Message, action string) error {
	t.applied.WithLabelValues(m.Key.Resource, action).Inc()
	return nil
}

// finishStatus completes a report whose status was written.
func (t *target) finishStatus(ctx context.Context, m wire.Message) error {
	last, err := t.isLatest(ctx, m)
	if (err != nil || !last) && t.onOvertaken != nil {
		t.onOvertaken(m)
	}
	return t.recordApplied(m, "status")
}

// errStale requests another try with what the apiserver holds now.
var errStale = errors.New("cache is behind")

// maxTries bounds the tries of one report: the first from the cache, the others live. Then the stream redelivers it.
const maxTries = 5

// retryStale calls attempt until it is not stale and no other writer interferes.
func retryStale(attempt func(live bool) error) error {
	var err error
	for i := range maxTries {
		err = attempt(i > 0)
		if !errors.Is(err, errStale) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return err
}

// decodeObject decodes a report's object and rejects one that does not match its key.
func decodeObject(m wire.Message, into client.Object) error {
	if err := json.Unmarshal(m.Object, into); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrPermanent, err)
	}
	if into.GetName() != m.Key.Name || into.GetNamespace() != m.Key.Namespace {
		return fmt.Errorf("%w: object is %s/%s", wire.ErrPermanent, into.GetNamespace(), into.GetName())
	}
	return nil
}
