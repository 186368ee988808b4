package reports

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// csiNodeReports applies the reports of CSINodes.
type csiNodeReports struct{ *target }

// applyCSINode writes which CSI drivers run on a gateway. This is rare (a driver was added or removed), so the object
// is read live, as the node.
func (a csiNodeReports) applyCSINode(ctx context.Context, m wire.Message) error {
	reported := &storagev1.CSINode{}
	if err := decodeObject(m, reported); err != nil {
		return err
	}
	if m.Key.Name != m.Node {
		return a.dropReport(m, dropForeign)
	}
	return retryStale(func(bool) error {
		current, err := a.node.StorageV1().CSINodes().Get(ctx, m.Node, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		switch {
		case err != nil && !missing:
			return fmt.Errorf("read: %w", err)
		case missing && m.UID != "":
			return a.dropReport(m, dropGone)
		case !missing && m.UID != "" && m.UID != string(current.UID):
			return a.dropReport(m, dropOtherUID)
		case !missing && equality.Semantic.DeepEqual(current.Spec, reported.Spec):
			return a.dropReport(m, dropUnchanged)
		}
		if last, err := a.isLatest(ctx, m); err != nil {
			return err
		} else if !last {
			return a.dropReport(m, dropReplaced)
		}
		if missing {
			node, err := a.own.CoreV1().Nodes().Get(ctx, m.Node, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("read its owner: %w", err)
			}
			made := &storagev1.CSINode{Spec: reported.Spec, ObjectMeta: metav1.ObjectMeta{
				Name: m.Node, Annotations: reported.Annotations,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}, // deleted with the Node
			}}
			if _, err := a.node.StorageV1().CSINodes().Create(ctx, made, metav1.CreateOptions{}); err != nil {
				return err
			}
			return a.recordApplied(m, "create")
		}
		current.Spec = reported.Spec // with the resourceVersion that was read: a newer write wins
		if _, err := a.node.StorageV1().CSINodes().Update(ctx, current, metav1.UpdateOptions{}); err != nil {
			return err
		}
		return a.recordApplied(m, "update")
	})
}
