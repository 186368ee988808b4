package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const valveManifest = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: valve-model}
spec:
  properties: [{name: opening, type: INT, accessMode: ReadWrite, minimum: "0", maximum: "100"}]
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: valve}
spec:
  deviceModelRef: {name: valve-model}
  nodeName: edge-1
  protocol: {protocolName: nobody-has-it}
  properties: [{name: opening, desired: {value: "10"}}]
  methods: [{name: open, propertyNames: [opening]}]
`

// callValve runs frond device call against the cluster's cloudcores.
func callValve(t *testing.T, data string) (code int, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(shared.Dir(), "bin", "frond"), "device", "call", "valve", "open", "--data", data)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig(), "FROND_CLOUDCORE="+shared.Cloudcores())
	var text strings.Builder
	cmd.Stderr = &text
	return exitCode(cmd.Run()), text.String()
}

// TestDevices_Commands: a value that is set on a gateway is shown in the cloud, also after the death of edgecore, until it is ended. A call of a method goes to the
// gateway, which refuses what the model does not allow and knows no mapper.
func TestDevices_Commands(t *testing.T) {
	applyManifest(t, valveManifest)
	shows := func(what string, fine func(text string) bool) {
		t.Helper()
		eventually(t, "DeviceStatus of the valve shows "+what, func(context.Context) string {
			text, err := shared.Kubectl(t.Context(), "", "get", "devicestatus", "valve", "-o",
				`jsonpath={.status.extensions.frond.overrides.opening.value} {range .status.extensions.frond.conditions[*]}{.type}={.status} {end}`)
			if err == nil && fine(text) {
				return ""
			}
			return fmt.Sprint(text, err)
		})
	}
	overridden := func(text string) bool {
		return strings.HasPrefix(text, "55 ") && strings.Contains(text, "LocalOverride=True")
	}
	shows("its conditions", func(text string) bool { return strings.Contains(text, "Applied=False") })
	if _, errs, code := runOnEdge(t, "edge-1", nil, "frond", "edge", "device", "set", "valve", "opening=101", "--for", "1h"); code != 3 {
		t.Errorf("a value that the model does not allow: %d %s", code, errs)
	}
	runFrondEdge(t, "device", "set", "valve", "opening=55", "--for", "1h", "--by", "ada")
	shows("the override", overridden)
	if err := shared.Kill(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the gateway has the override again", func(context.Context) string {
		out, errs, code := runOnEdge(t, "edge-1", nil, "frond", "edge", "device", "get", "valve")
		if code == 0 && strings.Contains(out, "55 until") && strings.Contains(out, "by ada") {
			return ""
		}
		return out + errs
	})
	for data, want := range map[string]struct {
		code int
		text string
	}{"60": {4, `no mapper has registered protocol "nobody-has-it"`}, "101": {1, "not within"}} {
		eventually(t, "the gateway answers the call of "+data, func(context.Context) string { // its tunnels may not be open yet
			code, errs := callValve(t, data)
			if code == want.code && strings.Contains(errs, want.text) {
				return ""
			}
			return fmt.Sprint(code, " ", errs)
		})
	}
	runFrondEdge(t, "device", "set", "valve", "--end")
	shows("no override", func(text string) bool {
		return strings.HasPrefix(text, " ") && !strings.Contains(text, "LocalOverride")
	})
}
