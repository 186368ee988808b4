package reports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// StillLast asks the stream's leader whether a report is still the newest of its object.
type StillLast func(ctx context.Context, m wire.Message) (bool, error)

// Config of an Applier. The zero value works.
type Config struct {
	// ClassicImpersonation is for Kubernetes before 1.36; see Impersonating.
	ClassicImpersonation bool
	// Overtaken is told of a report that was written though a newer one of its object had come meanwhile. The newer one may
	// have found nothing to write, as Kubernetes still held what it says, so somebody must ask the node again. nil: nobody.
	Overtaken func(m wire.Message)
	// Ways are how the cloud reaches nodes.
	Ways Ways
	// Protected are the namespaces in which no mirror pod and no event of a node is created.
	Protected controllers.ProtectedNamespaces
	// Metrics registers the metrics; nil: they are kept and not shown.
	Metrics prometheus.Registerer
}

// Applier applies reports. It is stateless and may be called concurrently.
type Applier struct {
	// cached reads from memory and may be behind.
	cached client.Reader
	// own acts with cloudcore's rights and only reads; node acts as the node in the context.
	own, node kubernetes.Interface
	stillLast StillLast
	overtaken func(m wire.Message)
	ways      Ways
	protected controllers.ProtectedNamespaces
	log       *zap.Logger
	applied   *prometheus.CounterVec
	dropped   *prometheus.CounterVec
}

// New makes an Applier. cached must serve Pods and Nodes from an informer's memory.
func New(cfg Config, config *rest.Config, cached client.Reader, stillLast StillLast, log *zap.Logger) (*Applier, error) {
	own, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reports: %w", err)
	}
	node, err := kubernetes.NewForConfig(Impersonating(config, cfg.ClassicImpersonation))
	if err != nil {
		return nil, fmt.Errorf("reports: %w", err)
	}
	f := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "frond_reports_" + name, Help: help}, labels)
		if cfg.Metrics != nil {
			cfg.Metrics.MustRegister(c)
		}
		return c
	}
	return &Applier{
		cached: cached, own: own, node: node, stillLast: stillLast, overtaken: cfg.Overtaken, ways: cfg.Ways, protected: cfg.Protected, log: log,
		applied: f("applied_total", "Reports applied to Kubernetes, by resource and what was done.", "resource", "action"),
		dropped: f("dropped_total", "Reports rightly not applied, by resource and reason.", "resource", "reason"),
	}, nil
}

// Why a report is dropped; the values of the metric's label.
const (
	foreign     = "foreign"     // about an object that is not the node's
	otherUID    = "uid"         // about an earlier object of that name
	gone        = "gone"        // its object is no more
	replaced    = "replaced"    // a newer report of the object is in the stream, or was handled
	unchanged   = "unchanged"   // Kubernetes holds it already
	running     = "running"     // the end of a pod that nobody deleted
	terminating = "terminating" // an event in a namespace that is being deleted
	protected   = "protected"   // a mirror pod or an event in a protected namespace
)

// Handle applies one report. nil: it is applied or rightly dropped. An error that wraps wire.ErrPermanent can never
// succeed; one that wraps wire.ErrRefused is Kubernetes' no to this report; any other may succeed, later.
func (a *Applier) Handle(ctx context.Context, m wire.Message) error {
	ctx = WithNode(ctx, m.Node)
	var handle func(context.Context, wire.Message) error
	switch {
	case m.Key.Resource == "pods" && m.Key.Group == "" && m.Op == wire.Apply:
		handle = a.podStatus
	case m.Key.Resource == "pods" && m.Key.Group == "" && m.Op == wire.Delete:
		handle = a.podEnd
	case m.Key.Resource == "nodes" && m.Key.Group == "" && m.Op == wire.Apply:
		handle = a.nodeStatus
	case m.Key.Resource == "csinodes" && m.Op == wire.Apply:
		handle = a.csiNode
	case m.Key.Resource == "events" && m.Op == wire.Apply:
		handle = a.event
	default:
		return fmt.Errorf("%s of %s: %w", m.Op, m.Key.Human(), wire.ErrPermanent)
	}
	if err := handle(ctx, m); err != nil {
		return fmt.Errorf("%s of %s from %s: %w", m.Op, m.Key.Human(), m.Node, judged(err))
	}
	return nil
}

// judged marks errors of the apiserver that repeat for ever as permanent, and its other answers as refused. Without an
// answer, or with one that says to come again, the apiserver is away for all alike.
func judged(err error) error {
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

func (a *Applier) drop(m wire.Message, reason string) error {
	a.dropped.WithLabelValues(m.Key.Resource, reason).Inc()
	a.log.Debug("report dropped", zap.String("node", m.Node), zap.String("object", m.Key.Human()), zap.String("reason", reason))
	return nil
}

func (a *Applier) did(m wire.Message, action string) error {
	a.applied.WithLabelValues(m.Key.Resource, action).Inc()
	return nil
}

// wrote ends a report whose status was written.
func (a *Applier) wrote(ctx context.Context, m wire.Message) error {
	last, err := a.stillLast(ctx, m)
	if (err != nil || !last) && a.overtaken != nil {
		a.overtaken(m)
	}
	return a.did(m, "status")
}

// errStale asks for another try with what the apiserver holds now.
var errStale = errors.New("cache is behind")

// tries bounds the tries of one report: the first from the cache, the others live. Then the stream offers it again.
const tries = 5

// again calls attempt until it is not stale and no other writer interferes.
func again(attempt func(live bool) error) error {
	var err error
	for i := range tries {
		err = attempt(i > 0)
		if !errors.Is(err, errStale) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return err
}

// decode reads a report's object and refuses one that is not its key's.
func decode(m wire.Message, into client.Object) error {
	if err := json.Unmarshal(m.Object, into); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrPermanent, err)
	}
	if into.GetName() != m.Key.Name || into.GetNamespace() != m.Key.Namespace {
		return fmt.Errorf("%w: object is %s/%s", wire.ErrPermanent, into.GetNamespace(), into.GetName())
	}
	return nil
}
