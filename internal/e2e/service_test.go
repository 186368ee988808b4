package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lateService is made while the gateway is away.
const lateService = `
apiVersion: v1
kind: Service
metadata: {name: boot-late}
spec: {clusterIP: 10.96.0.78, internalTrafficPolicy: Local, selector: {set: boot}, ports: [{port: 80, targetPort: 8080}]}
`

// answered waits until half of the eight pods behind a Service have answered the pod with the claim, from now on: kube-proxy has
// the rules for it, from the gateway's own API, and they lead to where the pods are now.
func answered(t *testing.T, file string) {
	t.Helper()
	if !shared.Spec().KubeProxy {
		t.Log("Services are not tried: no kube-proxy, it needs root and nft (frond dev up --kube-proxy)")
		return
	}
	path := filepath.Join(shared.Dir(), "edge-2", "disk", file)
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	eventually(t, "half of the pods answer through their Service", func(context.Context) string {
		all, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		heard := map[string]bool{}
		for line := range strings.Lines(string(all[min(len(old), len(all)):])) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, "boot-") {
				heard[name] = true
			}
		}
		if len(heard) < 4 {
			return fmt.Sprint("heard ", heard)
		}
		return ""
	})
}
