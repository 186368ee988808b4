package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
)

const pumpManifest = `
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: pump}
spec:
  nodeName: edge-1
  protocol: {protocolName: modbus}
  properties: [{name: speed, desired: {value: "20"}}]
`

// awaitPump waits until the gateways hold the Device of the test, or do not, and a node has claimed it.
func awaitPump(t *testing.T, holder string, gateways map[string]bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s holds the pump; gateways with the Device: %v", holder, gateways), func(ctx context.Context) string {
		claimed, err := shared.Kubectl(ctx, "", "get", "device", "pump", "-o", `jsonpath={.metadata.annotations.frond\.io/device-holder}`)
		if err != nil || claimed != holder {
			return fmt.Sprintf("held by %q: %v", claimed, err)
		}
		for edge, want := range gateways {
			var device devices.Device
			if err := readStored(ctx, edge, deviceKey(devices.DevicesResource, "pump"), &device); (err == nil) != want {
				return fmt.Sprintf("%s: %v", edge, err)
			}
		}
		return ""
	})
}

// TestDevices_OneGatewayAtATime: a device that moves while its gateway is offline is given to no other one until that has removed it, or an operator says
// that it is off. A restart of cloudcore changes nothing of that.
func TestDevices_OneGatewayAtATime(t *testing.T) {
	applyManifest(t, pumpManifest)
	awaitPump(t, "edge-1", map[string]bool{"edge-1": true})
	heal := func() {
		t.Helper()
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(heal)
	cut := func() {
		t.Helper()
		if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
			t.Fatal(err)
		}
	}
	move := func(node string) {
		t.Helper()
		runKubectl(t, "patch", "device", "pump", "--type=merge", "-p", `{"spec":{"nodeName":"`+node+`"}}`)
	}
	awaitHeld := func() {
		t.Helper()
		eventually(t, "the DeviceStatus says who holds the device", func(ctx context.Context) string {
			text, err := shared.Kubectl(ctx, "", "get", "devicestatus", "pump", "-o", "json")
			if err != nil || !strings.Contains(text, devices.ReasonHeldByOtherGateway) {
				return fmt.Sprintf("%v %s", err, text)
			}
			return ""
		})
	}

	cut()
	move("edge-2")
	awaitHeld() // after the gateway counts as away, 30 s
	for _, cloudcore := range []string{"cloudcore-1", "cloudcore-2"} {
		if err := errors.Join(shared.Kill(t.Context(), cloudcore), shared.Start(t.Context(), cloudcore)); err != nil {
			t.Fatal(err)
		}
	}
	awaitPump(t, "edge-1", map[string]bool{"edge-1": true, "edge-2": false})
	heal()
	awaitPump(t, "edge-2", map[string]bool{"edge-1": false, "edge-2": true})

	move("edge-1")
	awaitPump(t, "edge-1", map[string]bool{"edge-1": true, "edge-2": false})
	cut()
	move("edge-2")
	runKubectl(t, "annotate", "device", "pump", names.AnnotationForceMove+"=edge-1")
	awaitPump(t, "edge-2", map[string]bool{"edge-1": true, "edge-2": true})
	heal()
	awaitPump(t, "edge-2", map[string]bool{"edge-1": false, "edge-2": true})
}
