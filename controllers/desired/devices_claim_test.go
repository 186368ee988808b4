package desired_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

// A device that another node holds is published for nobody; its old node gets the tombstone at once, and counts as free of it when it has confirmed that.
func TestEngine_HeldDeviceIsGivenToNobody(t *testing.T) {
	w := newDeviceEnv(t)
	node, other := w.createNode("a"), w.createNode("b")
	w.createModel("lamp")
	cfg := probeConfig(newFakeProbe(w.engineEnv, nil))
	cfg.Workers = 1 // so that the order is that of the queue
	engine := w.startEngine(cfg, &fakeOwnership{}, "desired")
	claim := func(holder string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationDeviceHolder, holder)
		if _, err := w.of(devices.DevicesResource).Patch(t.Context(), "one", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.createDevice("one", node, "lamp")
	claim(node)
	w.eventuallyHasDevices(node, "devicemodels lamp", "devices one")
	w.patchSpec(devices.DevicesResource, "one", fmt.Sprintf(`{"nodeName":%q}`, other))
	w.eventuallyHasDevices(node)
	w.createDevice("witness", other, "lamp")
	w.eventuallyHasDevices(other, "devicemodels lamp", "devices witness")

	key := w.key(devices.DevicesResource, "one")
	tombstone := w.heldMessages(node)[key]
	if tombstone.Op != wire.Delete || engine.Removed(node, key) {
		t.Errorf("message %+v; removed before the node was heard", tombstone)
	}
	marker := w.eventuallyMessage(node, wire.SnapshotMarker(), "the marker", isApplied)
	engine.RecordAck(node, tombstone.Sequence-1)
	if engine.Removed(node, key) {
		t.Error("removed before the node has the tombstone")
	}
	engine.RecordAck(node, max(tombstone.Sequence, marker.Sequence))
	eventuallyMatches(w.engineEnv, func() (any, bool) { removed := engine.Removed(node, key); return removed, removed }, true)
	claim(other)
	w.eventuallyHasDevices(other, "devicemodels lamp", "devices one", "devices witness")
}
