package reports_test

import (
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

func TestApplier_WritesCSINode(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("csi")
	reported := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: "local.csi.example.com", NodeID: "one"}},
	}}
	message := func(object *storagev1.CSINode) wire.Message {
		m := w.reportOf(node.Name, wire.Apply, "csinodes", object)
		m.Key.Group = "storage.k8s.io"
		return m
	}
	w.handleReport(message(reported))
	got, err := w.client.StorageV1().CSINodes().Get(t.Context(), node.Name, metav1.GetOptions{})
	if err != nil || len(got.Spec.Drivers) != 1 {
		t.Fatalf("made offline: %+v, %v", got, err)
	}
	if o := got.OwnerReferences; len(o) != 1 || o[0].Kind != "Node" || o[0].Name != node.Name || o[0].UID != node.UID {
		t.Errorf("owners %+v, want the Node, with which it ends", o)
	}
	next := got.DeepCopy()
	next.Spec.Drivers = append(next.Spec.Drivers, storagev1.CSINodeDriver{Name: "other.csi.example.com", NodeID: "two"})
	w.handleReport(message(next))
	if got, err = w.client.StorageV1().CSINodes().Get(t.Context(), node.Name, metav1.GetOptions{}); err != nil || len(got.Spec.Drivers) != 2 {
		t.Errorf("after an update: %+v, %v", got, err)
	}
	w.wantDropped(message(got), "unchanged")
	foreign := message(got)
	foreign.Node = "somebody"
	w.wantDropped(foreign, "foreign")
}
