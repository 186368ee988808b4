package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// lateServiceManifest is created while the gateway is away.
const lateServiceManifest = `
apiVersion: v1
kind: Service
metadata: {name: boot-late}
spec: {clusterIP: 10.96.0.78, internalTrafficPolicy: Local, selector: {set: boot}, ports: [{port: 80, targetPort: 8080}]}
`

// awaitServiceAnswers waits until the pod with the claim gets answers again: through the Service, and from the static pod at the gateway's
// port.
func awaitServiceAnswers(t *testing.T) {
	t.Helper()
	awaitAnswers(t, "answers", "boot-", 4)
	awaitAnswers(t, "port", "lamp-edge-2", 1)
}

// awaitLateService is the same for the Service that was created while the gateway was away.
func awaitLateService(t *testing.T) {
	t.Helper()
	awaitAnswers(t, "late", "boot-", 4)
}

// awaitAnswers waits until this many pods have answered the pod with the claim, from now on: the gateway has rules for them, with the
// pods' present addresses. Rules of a Service are kube-proxy's, from the gateway's own API; those of a port are the pod network's.
func awaitAnswers(t *testing.T, file, prefix string, pods int) {
	t.Helper()
	if !shared.Spec().KubeProxy {
		t.Log("not tried: no kube-proxy, it needs root and nft (frond dev up --kube-proxy)")
		return
	}
	path := filepath.Join(shared.Dir(), "edge-2", "disk", file)
	old, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	eventually(t, fmt.Sprintf("%d pods answer (%s)", pods, file), func(context.Context) string {
		all, err := os.ReadFile(path)
		if err != nil {
			return err.Error()
		}
		heard := map[string]bool{}
		for line := range strings.Lines(string(all[min(len(old), len(all)):])) {
			if name := strings.TrimSpace(line); strings.HasPrefix(name, prefix) {
				heard[name] = true
			}
		}
		if len(heard) < pods {
			return fmt.Sprint("heard ", heard)
		}
		return ""
	})
}
