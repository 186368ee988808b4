package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/cmd/frond/device"
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
	get := func() (s device.Status) {
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

// TestDevice_SetWaits: --wait ends when the device has its values, and tells what holds it back.
func TestDevice_SetWaits(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init")
	i.putDevice("b3", "gw-3")
	i.report("b3", 2, "70", "True", "True") // as a gateway that is fast
	i.mustRun("device", "set", "b3", "setpoint=70", "--wait")
	i.report("b3", 2, "70", "True", "True")
	if code, _, errs := i.runCommand("device", "set", "b3", "setpoint=71", "--wait", "--timeout", "1s"); code != 1 || !strings.Contains(errs, "has not reported since the change") {
		t.Errorf("an old report: %d %s", code, errs)
	}
	i.report("b3", 4, "70", "False", "False")
	if code, _, errs := i.runCommand("device", "set", "b3", "setpoint=9999", "--wait", "--timeout", "1m"); code != 1 || !strings.Contains(errs, "Accepted is False") {
		t.Errorf("refused: %d %s", code, errs)
	}
	i.report("b3", 5, "70", "True", "False")
	if code, _, errs := i.runCommand("device", "set", "b3", "setpoint=72", "--wait", "--timeout", "1s"); code != 1 || !strings.Contains(errs, "Applied is False") {
		t.Errorf("not yet: %d %s", code, errs)
	}
	for args, want := range map[string]string{
		"b3 pressure=1": "no property \"pressure\"; it has: temperature, setpoint", "b3 setpoint": "want PROPERTY=VALUE", "b3 a=1 a=2": "twice", "b9 a=1": "not found",
	} {
		if code, _, errs := i.runCommand(append([]string{"device", "set"}, strings.Fields(args)...)...); code != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: %d %s", args, code, errs)
		}
	}
}
