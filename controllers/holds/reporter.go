package holds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

const (
	// maxWriters is the number of concurrent writes; after a restore all nodes may have a hold to report.
	maxWriters = 8
	// writeTimeout bounds the writes for one node.
	writeTimeout        = 10 * time.Second
	retryBase, retryMax = 100 * time.Millisecond, 30 * time.Second
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch", "patch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}},
	}
}

// Reporter writes holds to Kubernetes.
type Reporter struct {
	kube    kubernetes.Interface
	objects cache.Cache
	owns    func(node string) bool
	log     *zap.Logger
	queue   controllers.Queue[string]

	mu sync.Mutex
	// Guarded by mu.
	pending map[string]*wire.Hold
	// written are the nodes with a hold that this replica wrote, which the cache may not show yet.
	written map[string]bool
}

// New creates a Reporter that writes for the nodes for which owns is true. objects must serve Nodes.
func New(kube kubernetes.Interface, objects cache.Cache, owns func(node string) bool, log *zap.Logger) *Reporter {
	return &Reporter{
		kube: kube, objects: objects, owns: owns, log: log, pending: map[string]*wire.Hold{}, written: map[string]bool{},
		queue: controllers.NewQueue[string](retryBase, retryMax),
	}
}

// Report enqueues the hold of a node, nil for none. It does not block, and may be called before Start.
func (t *Reporter) Report(node string, hold *wire.Hold) {
	t.mu.Lock()
	t.pending[node] = hold
	t.mu.Unlock()
	t.queue.Add(node)
}

// Start writes until ctx ends and then returns nil. The caller must start the cache.
func (t *Reporter) Start(ctx context.Context) error {
	controllers.ProcessQueue(ctx, t.queue, maxWriters, t.processNode)
	return nil
}

func (t *Reporter) processNode(ctx context.Context, node string) error {
	t.mu.Lock()
	hold, known := t.pending[node]
	t.mu.Unlock()
	if !known || !t.owns(node) {
		t.forgetReported(node, hold)
		return nil
	}
	wctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := t.writeHold(wctx, node, hold)
	switch {
	case err == nil, apierrors.IsNotFound(err): // without a Node there is nothing to write to; a recreated Node is evaluated again
		t.forgetReported(node, hold)
		return nil
	case ctx.Err() == nil:
		t.log.Warn("held deletions not told, trying again", zap.String("node", node), zap.Error(err))
	}
	return err
}

// forgetReported drops a report that was written, unless there is a newer one.
func (t *Reporter) forgetReported(node string, hold *wire.Hold) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending[node] == hold {
		delete(t.pending, node)
	}
}

func (t *Reporter) writeHold(ctx context.Context, name string, hold *wire.Hold) error {
	var node corev1.Node
	if err := t.objects.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		return fmt.Errorf("read the node: %w", err)
	}
	if hold == nil {
		return t.clearHold(ctx, &node)
	}
	t.mu.Lock()
	t.written[name] = true
	t.mu.Unlock()
	was, _ := wire.ParseHold(node.Annotations)
	is := *hold
	if is.Since = was.Since; was.Token != is.Token || was.Since.IsZero() {
		is.Since = time.Now().UTC().Truncate(time.Second)
	}
	var faults []error
	if !reflect.DeepEqual(was, is) {
		value, err := json.Marshal(is)
		if err != nil {
			return fmt.Errorf("encode the hold: %w", err)
		}
		faults = append(faults, t.annotateNode(ctx, name, map[string]any{names.AnnotationHeldDeletions: string(value)}))
	}
	text := holdMessage(name, is)
	return errors.Join(append(faults,
		t.writeCondition(ctx, &node, corev1.ConditionTrue, string(is.Reason), text),
		t.createEvent(ctx, &node, is, text))...)
}

// clearHold removes the hold from the Node, and the token that confirmed it.
func (t *Reporter) clearHold(ctx context.Context, node *corev1.Node) error {
	t.mu.Lock()
	wrote := t.written[node.Name]
	t.mu.Unlock()
	_, held := node.Annotations[names.AnnotationHeldDeletions]
	if !held && !wrote && conditionOf(node).Status != corev1.ConditionTrue {
		return nil
	}
	err := t.annotateNode(ctx, node.Name, map[string]any{names.AnnotationHeldDeletions: nil, names.AnnotationConfirmDeletions: nil})
	if err == nil {
		err = t.writeCondition(ctx, node, corev1.ConditionFalse, names.ReasonNothingHeld, "no deletion is held back")
	}
	if err == nil {
		t.mu.Lock()
		delete(t.written, node.Name)
		t.mu.Unlock()
	}
	return err
}

func (t *Reporter) annotateNode(ctx context.Context, node string, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return fmt.Errorf("encode the annotations: %w", err)
	}
	_, err = t.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	if err != nil {
		return fmt.Errorf("annotate: %w", err)
	}
	return nil
}

func conditionOf(node *corev1.Node) corev1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == names.ConditionDeletionsHeld {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func (t *Reporter) writeCondition(ctx context.Context, node *corev1.Node, status corev1.ConditionStatus, reason, text string) error {
	was := conditionOf(node)
	if was.Status == status && was.Reason == reason && was.Message == text {
		return nil
	}
	condition := map[string]any{
		"type": names.ConditionDeletionsHeld, "status": status, "reason": reason, "message": text, "lastHeartbeatTime": metav1.Now(),
	}
	if was.Status != status {
		condition["lastTransitionTime"] = metav1.Now()
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{condition}}})
	if err != nil {
		return fmt.Errorf("encode the condition: %w", err)
	}
	_, err = t.kube.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore}, "status")
	if err != nil {
		return fmt.Errorf("condition: %w", err)
	}
	return nil
}

// createEvent creates an event whose name is made of the node and the token, so that a hold has one event however many
// replicas report it, and how often.
func (t *Reporter) createEvent(ctx context.Context, node *corev1.Node, hold wire.Hold, text string) error {
	now := metav1.NewTime(hold.Since)
	_, err := t.kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: node.Name + "." + hold.Token},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID},
		Type:           corev1.EventTypeWarning, Reason: names.EventDeletionsHeld, Message: text,
		Source: corev1.EventSource{Component: names.ManagerCloudcore}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{FieldManager: names.ManagerCloudcore})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("event: %w", err)
	}
	return nil
}

// holdMessage returns the message about what is held and how to release it.
func holdMessage(node string, h wire.Hold) string {
	why := "would go at once without having been terminated"
	if h.Reason == wire.HoldRestored {
		why = "are unknown to the Kubernetes API since it went back in time"
	}
	listed := strings.Join(h.MissingSample, ", ")
	if h.Missing > len(h.MissingSample) {
		listed += ", …"
	}
	return fmt.Sprintf("%d of %d pods %s (%s); nothing is taken from the gateway until `frond confirm %s` or the annotation %s=%s",
		h.Missing, h.Pods, why, listed, node, names.AnnotationConfirmDeletions, h.Token)
}
