package reports

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

// nodeReports applies the reports of Nodes: their registration and their status.
type nodeReports struct{ *target }

func (a nodeReports) applyNodeStatus(ctx context.Context, m wire.Message) error {
	reported := &corev1.Node{}
	if err := decodeObject(m, reported); err != nil {
		return err
	}
	if m.Key.Name != m.Node {
		return a.dropReport(m, dropForeign)
	}
	return retryStale(func(live bool) error {
		node, err := a.readNode(ctx, m, live)
		switch {
		case apierrors.IsNotFound(err) && !live:
			return errStale
		case apierrors.IsNotFound(err) && m.UID == "":
			return a.registerNode(ctx, m, reported)
		case apierrors.IsNotFound(err):
			return a.dropReport(m, dropGone) // it was deleted; a late status does not create it again
		case err != nil:
			return fmt.Errorf("read: %w", err)
		case m.UID != "" && m.UID != string(node.UID) && !live:
			return errStale
		case m.UID != "" && m.UID != string(node.UID):
			return a.dropReport(m, dropOtherUID)
		}
		patch, err := a.addressing.nodeStatusPatch(node, reported)
		if err != nil {
			return err
		}
		if patch == nil {
			return a.dropReport(m, dropUnchanged)
		}
		if last, err := a.isLatest(ctx, m); err != nil {
			return err
		} else if !last {
			return a.dropReport(m, dropReplaced)
		}
		_, err = a.node.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if apierrors.IsNotFound(err) {
			return errStale // deleted since it was read; the next try decides what that means
		}
		if err != nil {
			return err
		}
		return a.finishStatus(ctx, m)
	})
}

func (a nodeReports) readNode(ctx context.Context, m wire.Message, live bool) (*corev1.Node, error) {
	if live {
		return a.own.CoreV1().Nodes().Get(ctx, m.Node, metav1.GetOptions{})
	}
	node := &corev1.Node{}
	return node, a.cached.Get(ctx, client.ObjectKey{Name: m.Node}, node)
}

// registerNode creates the Node that a gateway created for itself while it was offline.
func (a nodeReports) registerNode(ctx context.Context, m wire.Message, reported *corev1.Node) error {
	if last, err := a.isLatest(ctx, m); err != nil {
		return err
	} else if !last {
		return a.dropReport(m, dropReplaced)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: m.Node, Labels: allowedLabels(reported.Labels), Annotations: a.addressing.mergeAnnotations(m.Node, reported.Annotations)},
		Spec:       corev1.NodeSpec{Taints: reported.Spec.Taints, Unschedulable: reported.Spec.Unschedulable},
		Status:     reported.Status,
	}
	node.Status.Addresses = a.addressing.mergeAddresses(m.Node, reported.Status.Addresses)
	node.Status.DaemonEndpoints = a.addressing.daemonEndpoints(m.Node, reported.Status.DaemonEndpoints)
	if err := a.createNode(ctx, node); err != nil {
		return err
	}
	return a.recordApplied(m, "create")
}

// createNode creates a gateway's Node with the labels of a gateway from the first write on, so that no scheduler ever
// takes it for another node. NodeRestriction forbids a node to set these labels. Kubernetes therefore first checks the
// Node without them, as the node, in a dry run; cloudcore then creates with its own rights what was admitted.
func (a nodeReports) createNode(ctx context.Context, node *corev1.Node) error {
	if _, err := a.node.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		return err
	}
	node = node.DeepCopy()
	node.Labels = identity.WithGatewayLabels(node.Labels)
	_, err := a.own.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return err
}

// allowedLabels leaves out the labels that NodeRestriction forbids a node to set; with them, the whole Node would be refused.
func allowedLabels(labels map[string]string) map[string]string {
	kept := maps.Clone(labels)
	maps.DeleteFunc(kept, func(key, _ string) bool {
		prefix, _, found := strings.Cut(key, "/")
		if !found || slices.Contains(names.KubeletLabels(), key) || slices.Contains(names.ZoneLabels(), key) {
			return false
		}
		under := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
		if under(corev1.LabelNamespaceNodeRestriction) {
			return true
		}
		if under(corev1.LabelNamespaceSuffixKubelet) || under(corev1.LabelNamespaceSuffixNode) {
			return false
		}
		return under("kubernetes.io") || under("k8s.io")
	})
	return kept
}
