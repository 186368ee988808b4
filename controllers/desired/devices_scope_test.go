package desired_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

// A device on the move is given neither to its old node nor to its new one, also if both have a scope on Devices: the new one would drive it, and the
// old one would never confirm that it has removed it. A third node goes on reading it.
func TestEngine_HeldDeviceIsNotGivenByScope(t *testing.T) {
	w := newDeviceEnv(t)
	node, other, reader := w.createNode("a"), w.createNode("b"), w.createNode("c")
	w.createModel("lamp")
	scope := wire.ScopeKind{
		Scope: wire.Scope{Group: devices.Group, Version: devices.Version, Resource: devices.DevicesResource, Namespace: w.ns}, Kind: devices.DeviceKind, Namespaced: true,
	}
	var requests serviceRequests
	for _, n := range []string{node, other, reader} {
		requests.set(n, false, scope)
	}
	w.createDevice("one", node, "lamp") // older than the marker, so that a load compares them
	cfg := probeConfig(newFakeProbe(w.engineEnv, nil))
	cfg.Scopes = requests.config().Scopes
	cfg.Workers = 1 // so that the order is that of the queue
	engine := w.startEngine(cfg, &fakeOwnership{}, "desired")
	claim := func(holder string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationDeviceHolder, holder)
		if _, err := w.of(devices.DevicesResource).Patch(t.Context(), "one", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	claim(node)
	key := w.key(devices.DevicesResource, "one")
	nodeNameAt := func(at, want string) {
		t.Helper()
		eventuallyMatches(w.engineEnv, func() (any, bool) {
			var published devices.Device
			if w.heldMessages(at)[key].Op != wire.Apply {
				return "none", false
			}
			w.decodeObject(at, key, &published)
			return published.Spec.NodeName, published.Spec.NodeName == want
		}, want)
	}
	for _, n := range []string{node, other, reader} {
		nodeNameAt(n, node)
	}
	marker := w.eventuallyMessage(other, scope.Marker(), "the scope's marker", isApplied)

	w.patchSpec(devices.DevicesResource, "one", fmt.Sprintf(`{"nodeName":%q}`, other))
	for _, n := range []string{node, other} {
		w.eventuallyMessage(n, key, "the tombstone", func(m wire.Message) bool { return m.Op == wire.Delete })
	}
	nodeNameAt(reader, other)
	// Kubernetes tells the second of a creation: a witness of the marker's second would count as older than it, and as lost.
	eventuallyMatches(w.engineEnv, func() (any, bool) { now := time.Now(); return now, now.Truncate(time.Second).After(marker.Time) }, "a later second")
	engine.Resync(other)
	w.createDevice("witness", other, "lamp")
	w.eventuallyMessage(other, w.key(devices.DevicesResource, "witness"), "the witness", isApplied)
	w.eventuallyCompared(engine, other)
	if now := w.heldMessages(other); now[scope.Marker()].Sequence != marker.Sequence || now[key].Op != wire.Delete {
		t.Errorf("the marker was made again (%d, then %+v), or the device is given: %+v", marker.Sequence, now[scope.Marker()], now[key])
	}
	snapshot := w.eventuallyMessage(node, wire.SnapshotMarker(), "the marker", isApplied)
	engine.RecordAck(node, max(snapshot.Sequence, w.heldMessages(node)[key].Sequence))
	eventuallyMatches(w.engineEnv, func() (any, bool) { removed := engine.Removed(node, key); return removed, removed }, true)

	claim(other)
	for _, n := range []string{node, other, reader} { // the old one reads it, as the third does
		nodeNameAt(n, other)
	}
}
