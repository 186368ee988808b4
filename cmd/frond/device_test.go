package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/test/kit"
)

// putDevice creates a Device of a node with two properties.
func (i *installedCluster) putDevice(name, node string) {
	i.t.Helper()
	kit.Succeeds(i.t, 30*time.Second, func() error { // the kind may be new
		_, err := i.devices(devices.DevicesResource).Create(i.t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": devices.GroupVersion().String(), "kind": "Device", "metadata": map[string]any{"name": name},
			"spec": map[string]any{
				"nodeName": node, "deviceModelRef": map[string]any{"name": "boiler"},
				"properties": []any{map[string]any{"name": "temperature"}, map[string]any{"name": "setpoint", "desired": map[string]any{"value": "60", "metadata": map[string]any{"unit": "C"}}}},
			},
		}}, metav1.CreateOptions{})
		return err
	})
	i.t.Cleanup(func() {
		_ = i.devices(devices.DevicesResource).Delete(i.t.Context(), name, metav1.DeleteOptions{}) // the cluster ends with the tests
	})
}

func (i *installedCluster) devices(resource string) dynamic.ResourceInterface {
	i.t.Helper()
	client, err := dynamic.NewForConfig(sharedCluster.Cluster(i.t).Config())
	kit.Must(i.t, err)
	return client.Resource(devices.GroupVersion().WithResource(resource)).Namespace("default")
}

// report writes a DeviceStatus as cloudcore does.
func (i *installedCluster) report(name string, generation int64, setpoint, accepted, applied string) {
	i.t.Helper()
	condition := func(kind, status string) map[string]any {
		return map[string]any{
			"type": kind, "status": status, "reason": "Test", "message": kind + " is " + status, "observedGeneration": generation, "lastTransitionTime": "2026-01-01T00:00:00Z",
		}
	}
	_ = i.devices(devices.DeviceStatusesResource).Delete(i.t.Context(), name, metav1.DeleteOptions{}) // of before, if there was one
	kit.Succeeds(i.t, 30*time.Second, func() error {
		_, err := i.devices(devices.DeviceStatusesResource).Create(i.t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": devices.GroupVersion().String(), "kind": "DeviceStatus", "metadata": map[string]any{"name": name},
			"status": map[string]any{
				"state": "online", "lastOnlineTime": "2026-01-01T00:00:00Z",
				"twins":      []any{map[string]any{"propertyName": "setpoint", "reported": map[string]any{"value": setpoint, "metadata": map[string]any{"timestamp": "1000"}}}},
				"extensions": map[string]any{"frond": map[string]any{"conditions": []any{condition("Accepted", accepted), condition("Applied", applied)}}},
			},
		}}, metav1.CreateOptions{})
		return err
	})
}

// TestDevice_ShowsAndSets: frond device shows what Kubernetes has of a device, sets desired values and waits for them.
func TestDevice_ShowsAndSets(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.putDevice("b1", "gw-1")
	i.putDevice("b2", "gw-2")
	i.report("b1", 1, "60", "True", "True")
	if out := i.mustRun("device", "ls"); !strings.Contains(out, "STATE") || !strings.Contains(out, "online") || !strings.Contains(out, "yes") || !strings.Contains(out, "gw-2") {
		t.Errorf("ls prints\n%s", out)
	}
	if out := i.mustRun("device", "ls", "-A", "--node", "gw-2"); strings.Contains(out, "gw-1") || !strings.Contains(out, "b2") {
		t.Errorf("ls --node prints\n%s", out)
	}
	if out := i.mustRun("device", "get", "b1"); !strings.Contains(out, "setpoint") || !strings.Contains(out, "60") {
		t.Errorf("get prints\n%s", out)
	}
	get := func() (s deviceview.Device) {
		t.Helper()
		kit.Must(t, json.Unmarshal([]byte(i.mustRun("device", "get", "b1", "-o", "json")), &s))
		return s
	}
	i.mustRun("device", "set", "b1", "setpoint=70")
	s := get()
	if s.Generation != 2 || *s.Properties[1].Desired != "70" || *s.Properties[1].Reported != "60" || s.Properties[0].Desired != nil {
		t.Errorf("after set: %+v", s)
	}
	o, err := i.devices(devices.DevicesResource).Get(t.Context(), "b1", metav1.GetOptions{})
	kit.Must(t, err)
	if text := fmt.Sprint(o.Object["spec"]); !strings.Contains(text, "unit:C") {
		t.Errorf("the metadata of a desired value is lost: %s", text)
	}
	i.mustRun("device", "set", "b1", "setpoint=", "temperature=5")
	if s = get(); s.Properties[1].Desired != nil || *s.Properties[0].Desired != "5" {
		t.Errorf("after a value was taken away: %+v", s)
	}
}

// TestDevice_SetWaits: --wait ends when the device has its values, and tells what holds it back, also by its exit code.
func TestDevice_SetWaits(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.putDevice("b3", "gw-3")
	i.report("b3", 2, "70", "True", "True") // as a gateway that is fast
	i.mustRun("device", "set", "b3", "setpoint=70", "--wait")
	set := func(wantCode int, wantErr string, args ...string) {
		t.Helper()
		code, _, errs := i.runCommand(append([]string{"device", "set", "b3", "--wait"}, args...)...)
		if code != wantCode || !strings.Contains(errs, wantErr) {
			t.Errorf("%v: code %d, want %d, and %q in %s", args, code, wantCode, wantErr, errs)
		}
	}
	i.report("b3", 2, "70", "True", "True")
	set(5, "has not reported since the change", "setpoint=71", "--timeout", "1s") // Applied is of an older generation
	i.report("b3", 4, "70", "False", "False")
	set(3, "rejected: device default/b3: Accepted is False", "setpoint=9999", "--timeout", "1m")
	i.report("b3", 4, "70", "False", "False")
	set(5, "has not reported since the change", "setpoint=72", "--timeout", "1s") // so is this rejection
	i.report("b3", 6, "70", "True", "False")
	set(5, "Applied is False", "setpoint=73", "--timeout", "1s")
	i.setState("b3", "offline", "")
	set(4, "the device is offline", "setpoint=74", "--timeout", "1s")
	i.setState("b3", "unknown", "2026-01-01T00:00:00Z")
	set(4, "its gateway gw-3 is away", "setpoint=75", "--timeout", "1s")
	for args, want := range map[string]string{
		"b3 pressure=1": "no property \"pressure\"; it has: temperature, setpoint", "b3 setpoint": "want PROPERTY=VALUE", "b3 a=1 a=2": "twice", "b9 a=1": "not found",
	} {
		if code, _, errs := i.runCommand(append([]string{"device", "set"}, strings.Fields(args)...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
}

// TestDevice_SetWaitsForALostGateway: a device that never told a state has no mark of cloudcore's; its Node says that the gateway is away.
func TestDevice_SetWaitsForALostGateway(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.putDevice("b4", "gw-lost")
	node, err := i.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gw-lost"}}, metav1.CreateOptions{})
	kit.Must(t, err)
	t.Cleanup(func() {
		kit.Must(t, i.client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), "gw-lost", metav1.DeleteOptions{}))
	})
	node.Status.Conditions = []corev1.NodeCondition{{Type: names.ConditionConnected, Status: corev1.ConditionFalse}}
	_, err = i.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	kit.Must(t, err)
	if code, _, errs := i.runCommand("device", "set", "b4", "setpoint=70", "--wait", "--timeout", "1s"); code != 4 || !strings.Contains(errs, "its gateway gw-lost is away") {
		t.Errorf("code %d, %s", code, errs)
	}
}

// setState changes the state of a device; since is when its gateway was last heard, "" if it is there.
func (i *installedCluster) setState(name, state, since string) {
	i.t.Helper()
	status := map[string]any{"state": state}
	if since != "" {
		status["extensions"] = map[string]any{"frond": map[string]any{"state": map[string]any{"before": "online", "since": since}}}
	}
	body, err := json.Marshal(map[string]any{"status": status})
	kit.Must(i.t, err)
	_, err = i.devices(devices.DeviceStatusesResource).Patch(i.t.Context(), name, types.MergePatchType, body, metav1.PatchOptions{})
	kit.Must(i.t, err)
}
