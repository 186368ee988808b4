package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
)

// A device and its model as users of KubeEdge write them.
const deviceManifest = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: thermometer}
spec:
  protocol: modbus
  properties: [{name: temperature, type: INT, accessMode: ReadWrite, minimum: "0", maximum: "100"}]
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: hall-3}
spec:
  deviceModelRef: {name: thermometer}
  nodeName: edge-1
  protocol: {protocolName: modbus, configData: {slaveID: 1}}
  properties:
  - name: temperature
    desired: {value: "20"}
    visitors: {protocolName: modbus, configData: {register: HoldingRegister, offset: 2}}
`

func deviceKey(resource, name string) wire.Key {
	return wire.Key{Group: devices.Group, Resource: resource, Namespace: "default", Name: name}
}

// heldDevice describes what a gateway holds of the test's device and model: "desired value/model's maximum", "-" for an absent object.
func heldDevice(ctx context.Context, edge string) string {
	desired, maximum := "-", "-"
	var device devices.Device
	switch err := readStored(ctx, edge, deviceKey(devices.DevicesResource, "hall-3"), &device); {
	case errors.Is(err, devcluster.ErrNotInStore):
	case err != nil:
		return err.Error()
	default:
		desired = device.Spec.Properties[0].Desired.Value
	}
	var model devices.DeviceModel
	switch err := readStored(ctx, edge, deviceKey(devices.DeviceModelsResource, "thermometer"), &model); {
	case errors.Is(err, devcluster.ErrNotInStore):
	case err != nil:
		return err.Error()
	default:
		maximum = model.Spec.Properties[0].Maximum
	}
	return desired + "/" + maximum
}

// readStored reads an object from a gateway's store.
func readStored(ctx context.Context, edge string, key wire.Key, into any) error {
	raw, err := shared.StoreGet(ctx, edge, key)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

func awaitDevice(t *testing.T, edge, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s holds %s", edge, want), func(ctx context.Context) string {
		if got := heldDevice(ctx, edge); got != want {
			return got
		}
		return ""
	})
}

// TestDevices_FollowTheirNode: a gateway gets its devices and their models, and changes of either, also those made without a link. A
// device that is moved leaves one gateway and arrives at the other; what is deleted leaves.
func TestDevices_FollowTheirNode(t *testing.T) {
	applyManifest(t, deviceManifest)
	awaitDevice(t, "edge-1", "20/100")
	if table := runKubectl(t, "get", "devices", "hall-3"); !strings.Contains(table, "MODEL") || !strings.Contains(table, "thermometer") || !strings.Contains(table, "edge-1") {
		t.Errorf("kubectl get prints %s", table)
	}
	patch := func(kind, name, spec string) {
		t.Helper()
		runKubectl(t, "patch", kind, name, "--type=merge", "-p", `{"spec":`+spec+`}`)
	}
	setMaximum := func(value string) {
		t.Helper()
		patch("devicemodel", "thermometer", `{"properties":[{"name":"temperature","type":"INT","accessMode":"ReadWrite","maximum":"`+value+`"}]}`)
	}
	setDesired := func(value string) {
		t.Helper()
		patch("device", "hall-3", `{"properties":[{"name":"temperature","desired":{"value":"`+value+`"}}]}`)
	}
	setMaximum("200")
	awaitDevice(t, "edge-1", "20/200")

	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	setDesired("30")
	setMaximum("300")
	if got := heldDevice(t.Context(), "edge-1"); got != "20/200" {
		t.Errorf("without a link the gateway holds %s", got)
	}
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	awaitDevice(t, "edge-1", "30/300")

	patch("device", "hall-3", `{"nodeName":"edge-2"}`)
	awaitDevice(t, "edge-2", "30/300")
	awaitDevice(t, "edge-1", "-/-")
	runKubectl(t, "delete", "device", "hall-3")
	awaitDevice(t, "edge-2", "-/-")
}
