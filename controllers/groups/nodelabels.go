package groups

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/api/names"
)

// nodeChange is what a Node's metadata lacks; nil values remove a key.
type nodeChange struct {
	labels, annotations map[string]*string
}

func (c nodeChange) empty() bool { return len(c.labels) == 0 && len(c.annotations) == 0 }

// decideNode returns the change that makes a Node say that it is a member of a group, "" for none. zone asks for the group as its zone. A
// zone label is cloudcore's own if names.AnnotationGroupZone has the same value; any other one stays as it is.
func decideNode(node *corev1.Node, group string, zone bool) nodeChange {
	c := nodeChange{labels: map[string]*string{}, annotations: map[string]*string{}}
	if !validLabelValue(group) {
		group = ""
	}
	setKey(c.labels, node.Labels, names.LabelNodeGroup, group)
	wanted := ""
	if zone {
		wanted = group
	}
	has, labelled := node.Labels[corev1.LabelTopologyZone]
	written, annotated := node.Annotations[names.AnnotationGroupZone]
	if labelled && (!annotated || written != has) {
		setKey(c.annotations, node.Annotations, names.AnnotationGroupZone, "") // it is somebody else's
		return c
	}
	setKey(c.labels, node.Labels, corev1.LabelTopologyZone, wanted)
	setKey(c.annotations, node.Annotations, names.AnnotationGroupZone, wanted)
	return c
}

// setKey records that a key must get a value, or be removed for "", unless it is so.
func setKey(change map[string]*string, present map[string]string, key, value string) {
	switch has, ok := present[key]; {
	case value == "" && ok:
		change[key] = nil
	case value != "" && has != value:
		change[key] = &value
	}
}

// validLabelValue reports whether the name of a group can be the value of a label.
func validLabelValue(name string) bool { return len(validation.IsValidLabelValue(name)) == 0 }

// foreignZone returns the zone that a Node keeps against its group's wish, "" for none.
func foreignZone(node *corev1.Node, group string) string {
	if zone := node.Labels[corev1.LabelTopologyZone]; zone != group && node.Annotations[names.AnnotationGroupZone] != zone {
		return zone
	}
	return ""
}

// wantedChange returns the change that a Node needs now.
func (c *Controller) wantedChange(node *corev1.Node) nodeChange {
	a := c.view.Assignment()
	if !a.Knows(node.Name) {
		return nodeChange{} // its evaluation comes, and tells
	}
	group, member := a.GroupOf(node.Name)
	if labelled, exists := c.view.Group(node.Labels[names.LabelNodeGroup]); exists && !member && keepsMembers(labelled) {
		return nodeChange{}
	}
	zone := false
	if member {
		o, exists := c.view.Group(group)
		zone = exists && o.Spec.TopologyEnabled
	}
	return decideNode(node, group, zone)
}

// reconcileNode writes the labels of one Node.
func (c *Controller) reconcileNode(ctx context.Context, name string) error {
	if !c.mayAct() || !c.owner.Owns(name) {
		return nil
	}
	found, exists, err := c.nodes.GetByKey(name)
	node, ok := found.(*corev1.Node)
	if err != nil || !exists || !ok || node.DeletionTimestamp != nil {
		return err
	}
	change := c.wantedChange(node)
	if change.empty() {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "labels": change.labels, "annotations": change.annotations,
	}})
	if err != nil {
		return fmt.Errorf("encode the labels: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = c.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err): // the cache will have the newer version, whose event may come before this
		c.nodeQueue.AddAfter(name, conflictRetry)
		return nil
	case err != nil:
		return fmt.Errorf("label node %s: %w", name, err)
	}
	c.metrics.writes.WithLabelValues("node").Inc()
	return nil
}
