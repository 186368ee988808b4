package desired_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// deviceEnv is an engineEnv whose apiserver may have the kinds of devices.
type deviceEnv struct {
	*engineEnv
	dynamic dynamic.Interface
}

// newDeviceEnv creates a deviceEnv with the kinds of devices.
func newDeviceEnv(t *testing.T) *deviceEnv {
	t.Helper()
	w := &deviceEnv{engineEnv: newEngineEnv(t)}
	var err error
	if w.dynamic, err = dynamic.NewForConfig(w.cluster.Config()); err != nil {
		t.Fatal(err)
	}
	w.installKinds()
	return w
}

func (w *deviceEnv) definitionClient() dynamic.ResourceInterface {
	return w.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
}

// definitions calls a function with each definition of a kind of devices.
func (w *deviceEnv) definitions(do func(*unstructured.Unstructured) error) {
	w.Helper()
	all, err := crd.Definitions()
	if err != nil {
		w.Fatal(err)
	}
	for _, data := range all {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &o.Object); err != nil {
			w.Fatal(err)
		}
		if group, _, _ := unstructured.NestedString(o.Object, "spec", "group"); group != devices.Group {
			continue
		}
		if err := do(o); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *deviceEnv) of(resource string) dynamic.ResourceInterface {
	return w.dynamic.Resource(devices.GroupVersion().WithResource(resource)).Namespace(w.ns)
}

func (w *deviceEnv) listKinds() error {
	for _, resource := range []string{devices.DevicesResource, devices.DeviceModelsResource, devices.DeviceStatusesResource} {
		if _, err := w.of(resource).List(w.Context(), metav1.ListOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// installKinds installs the kinds of devices and waits until they are served.
func (w *deviceEnv) installKinds() {
	w.Helper()
	w.definitions(func(o *unstructured.Unstructured) error {
		_, err := w.definitionClient().Create(w.Context(), o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	kubetest.Eventually(w, time.Minute, w.listKinds)
}

// removeKinds removes the kinds of devices, as in a cluster that never had them.
func (w *deviceEnv) removeKinds() {
	w.Helper()
	w.definitions(func(o *unstructured.Unstructured) error {
		return w.definitionClient().Delete(w.Context(), o.GetName(), metav1.DeleteOptions{})
	})
	kubetest.Eventually(w, time.Minute, func() error {
		for _, resource := range []string{devices.DevicesResource, devices.DeviceModelsResource, devices.DeviceStatusesResource} {
			if _, err := w.of(resource).List(w.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("%s are still served: %v", resource, err) //nolint:errorlint // err may be nil
			}
		}
		return nil
	})
}

func (w *deviceEnv) createObject(resource, kind, name string, spec map[string]any) {
	w.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}, "spec": spec}}
	o.SetGroupVersionKind(devices.GroupVersion().WithKind(kind))
	if _, err := w.of(resource).Create(w.Context(), o, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *deviceEnv) createModel(name string) {
	w.Helper()
	w.createObject(devices.DeviceModelsResource, devices.DeviceModelKind, name, map[string]any{"protocol": "modbus"})
}

func (w *deviceEnv) createDevice(name, node, model string) {
	w.Helper()
	w.createObject(devices.DevicesResource, devices.DeviceKind, name, map[string]any{"nodeName": node, "deviceModelRef": map[string]any{"name": model}})
}

func (w *deviceEnv) patchSpec(resource, name, spec string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"spec":%s}`, spec)
	if _, err := w.of(resource).Patch(w.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}

func (w *deviceEnv) deleteObject(resource, name string) {
	w.Helper()
	if err := w.of(resource).Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

// key returns the key of a device, or of a model.
func (w *deviceEnv) key(resource, name string) wire.Key {
	return wire.Key{Group: devices.Group, Resource: resource, Namespace: w.ns, Name: name}
}

// deviceObjects returns the names of a node's live objects of the kinds of devices.
func (w *deviceEnv) deviceObjects(node string) []string {
	w.Helper()
	var found []string
	for key, m := range w.heldMessages(node) {
		if m.Op != wire.Delete && key.Group == devices.Group {
			found = append(found, key.Resource+" "+key.Name)
		}
	}
	slices.Sort(found)
	return found
}

func (w *deviceEnv) eventuallyHasDevices(node string, want ...string) {
	w.Helper()
	eventuallyMatches(w.engineEnv, func() (any, bool) {
		got := w.deviceObjects(node)
		return got, slices.Equal(got, want)
	}, want)
}

// eventuallyCompared waits until an engine has compared what the stream holds for a node with what it should hold.
func (w *deviceEnv) eventuallyCompared(engine *desired.Engine, node string) {
	w.Helper()
	eventuallyMatches(w.engineEnv, func() (any, bool) {
		_, _, known := engine.Inventory(node, nil)
		return known, known
	}, true)
}

func TestEngine_DevicesFollowTheirNode(t *testing.T) {
	w := newDeviceEnv(t)
	node, other := w.createNode("a"), w.createNode("b")
	w.createModel("lamp")
	w.createModel("unused")
	cfg := probeConfig(newFakeProbe(w.engineEnv, nil))
	cfg.Workers = 1 // so that the order is that of the queue
	w.startEngine(cfg, &fakeOwnership{}, "desired")

	w.createDevice("one", node, "lamp")
	w.createDevice("elsewhere", "no-gateway", "lamp")
	w.createDevice("incomplete", node, "")
	w.createObject(devices.DeviceStatusesResource, devices.DeviceStatusKind, "one", nil)
	w.eventuallyHasDevices(node, "devicemodels lamp", "devices incomplete", "devices one")
	held := w.heldMessages(node)
	device, model := w.key(devices.DevicesResource, "one"), w.key(devices.DeviceModelsResource, "lamp")
	if held[model].Sequence > held[device].Sequence {
		t.Errorf("the model is message %d, its device %d", held[model].Sequence, held[device].Sequence)
	}
	var published devices.Device
	if w.decodeObject(node, device, &published); published.APIVersion != devices.GroupVersion().String() || published.Spec.NodeName != node {
		t.Errorf("the device is %+v", published)
	}

	w.patchSpec(devices.DeviceModelsResource, "lamp", `{"protocol":"opcua"}`)
	w.eventuallyMessage(node, model, "the changed model", func(m wire.Message) bool { return isApplied(m) && m.Version != held[model].Version })
	if n := w.publishCount(node, device); n != 1 {
		t.Errorf("the device of a changed model was published %d times", n)
	}

	w.patchSpec(devices.DevicesResource, "one", fmt.Sprintf(`{"nodeName":%q}`, other))
	w.eventuallyHasDevices(node, "devices incomplete")
	w.eventuallyHasDevices(other, "devicemodels lamp", "devices one")
	if m := w.heldMessages(node)[device]; m.Op != wire.Delete {
		t.Errorf("the node that the device has left was sent %+v", m)
	}

	w.createModel("lantern")
	w.createDevice("two", other, "lamp")
	w.patchSpec(devices.DevicesResource, "one", `{"deviceModelRef":{"name":"lantern"}}`)
	w.eventuallyHasDevices(other, "devicemodels lamp", "devicemodels lantern", "devices one", "devices two")
	w.deleteObject(devices.DevicesResource, "two")
	w.eventuallyHasDevices(other, "devicemodels lantern", "devices one")
	w.deleteObject(devices.DeviceModelsResource, "lantern")
	w.eventuallyHasDevices(other, "devices one")
	w.deleteObject(devices.DevicesResource, "one")
	w.eventuallyHasDevices(other)
}

// An apiserver without the kinds is served as before, and the kinds are noticed when they are installed.
func TestEngine_DevicesInstalledLater(t *testing.T) {
	w := newDeviceEnv(t)
	w.removeKinds()
	node := w.createNode("a")
	w.createAccount("default")
	w.startEngine(probeConfig(newFakeProbe(w.engineEnv, nil)), &fakeOwnership{}, "desired")
	w.createPod("one", node)
	w.eventuallyMessage(node, coreKey("pods", w.ns, "one"), "the pod", isApplied)
	w.eventuallyMessage(node, wire.SnapshotMarker(), "the marker", isApplied)
	eventuallyMatches(w.engineEnv, func() (any, bool) {
		var kinds wire.DeliveredKinds
		if w.heldMessages(node)[wire.DeliveredKindsKey()].Op == wire.Apply {
			w.decodeObject(node, wire.DeliveredKindsKey(), &kinds)
		}
		k, _ := kinds.Find(devices.Group, devices.DevicesResource)
		return kinds, k.Absence == wire.KindNotServed
	}, "devices are said to be absent")

	w.installKinds()
	w.createDevice("one", node, "lamp")
	w.createModel("lamp")
	w.eventuallyHasDevices(node, "devicemodels lamp", "devices one")
}

// A replica that sees models, but no devices, does not know which models its nodes need: it removes none.
func TestEngine_ModelsStayWhileDevicesAreUnknown(t *testing.T) {
	w := newDeviceEnv(t)
	node := w.createNode("a")
	for i := range 5 { // more nodes for audits
		w.createNode(fmt.Sprint("other-", i))
	}
	for _, name := range []string{"one", "two"} {
		w.createModel("of-" + name)
		w.createDevice(name, node, "of-"+name)
	}
	first := &fakeOwnership{}
	w.startEngine(probeConfig(newFakeProbe(w.engineEnv, nil)), first, "desired")
	all := []string{"devicemodels of-one", "devicemodels of-two", "devices one", "devices two"}
	w.eventuallyHasDevices(node, all...)
	eventuallyMatches(w.engineEnv, func() (any, bool) { m := w.heldMessages(node)[wire.SnapshotMarker()]; return m, isApplied(m) }, "the marker")

	first.setOwned(node, false)
	probe := newFakeProbe(w.engineEnv, map[string]error{devices.DevicesResource: apierrors.NewForbidden(schema.GroupResource{Resource: devices.DevicesResource}, "", nil)})
	cfg := probeConfig(probe)
	cfg.CompareEvery = time.Hour // an audit, which takes one node a second, would find what is left over
	second := w.startEngine(cfg, &fakeOwnership{}, "desired-2")
	w.eventuallyCompared(second, node)
	w.eventuallyHasDevices(node, all...)

	w.deleteObject(devices.DevicesResource, "two")
	probe.showResource(devices.DevicesResource)
	w.eventuallyHasDevices(node, "devicemodels of-one", "devices one")
}

// A replica whose watch of devices is behind takes over a node: it removes no model that a newer device needs.
func TestEngine_StaleDevicesKeepModels(t *testing.T) {
	w := newDeviceEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.createModel("old")
	w.createModel("new")
	w.createDevice("one", node, "old")
	first, second := &fakeOwnership{}, &fakeOwnership{}
	second.setOwned(node, false)
	cfg := probeConfig(newFakeProbe(w.engineEnv, nil))
	cfg.TombstoneAge = time.Hour
	w.startEngine(cfg, first, "desired-first")
	ear, mine := newWatchBlocker(), &counted{Publisher: w.publisher.Publisher, count: map[wire.Key]map[string]int{}}
	w.startEngineWatching(ear, mine, cfg, second, "desired-second")
	w.eventuallyHasDevices(node, "devicemodels old", "devices one")

	ear.blockWatches()
	w.patchSpec(devices.DevicesResource, "one", `{"deviceModelRef":{"name":"new"}}`)
	w.eventuallyHasDevices(node, "devicemodels new", "devices one")
	before := w.heldMessages(node)
	first.setOwned(node, false)
	second.setOwned(node, true)
	<-time.After(time.Second) // a wrong action takes some milliseconds
	close(ear.openSignal())
	w.createPod("witness", node)
	w.eventuallyMessage(node, coreKey("pods", w.ns, "witness"), "published by the second", isApplied)
	w.eventuallyHasDevices(node, "devicemodels new", "devices one")
	after := w.heldMessages(node)
	for _, key := range []wire.Key{w.key(devices.DeviceModelsResource, "new"), w.key(devices.DeviceModelsResource, "old"), w.key(devices.DevicesResource, "one")} {
		if before[key].Sequence != after[key].Sequence {
			t.Errorf("%s was published again: %+v, then %+v", key.Human(), before[key], after[key])
		}
	}
}
