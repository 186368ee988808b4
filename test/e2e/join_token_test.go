package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/names"
)

// runFrond runs the cluster's frond program, and returns its output.
func runFrond(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(shared.Dir(), "bin", "frond"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig())
	var talk strings.Builder
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("frond %s: %w: %s", strings.Join(args, " "), err, talk.String())
	}
	return string(out), nil
}

// TestToken_PrintedCommandJoins: the development cluster is one that frond init has made. The command printed by frond token create enrols
// the machine that runs it, and no other; with another CA hash it sends nothing to the hub.
func TestToken_PrintedCommandJoins(t *testing.T) {
	node := fmt.Sprintf("newcomer-%d", time.Now().UnixNano())
	printed, err := runFrond(t, "token", "create", "--node", node, "--print-join-command")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(printed)
	if len(words) < 3 || words[0] != "frond" || words[1] != "join" {
		t.Fatalf("it printed %q", printed)
	}
	hash := slices.Index(words, "--ca-hash") + 1
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
		defer cancel()
		if _, err := shared.Kubectl(ctx, "", "annotate", "nodeidentity", node, names.AnnotationConfirmDeletion+"="+node); err != nil {
			t.Log(err) // it never joined
		}
		if _, err := shared.Kubectl(ctx, "", "delete", "nodeidentity", node, "--ignore-not-found"); err != nil {
			t.Error(err)
		}
	})
	join := func(words []string) (string, error) {
		t.Helper()
		dir := t.TempDir() // a machine of its own; its edgecore is not started, because the first gateway uses the ports
		return runFrond(t, slices.Concat(words[1:], []string{
			"--no-start", "--config", filepath.Join(dir, "edgecore.yaml"), "--dir", filepath.Join(dir, "data"), "--unit-dir", dir,
			"--runtime-endpoint", "hollow", "--timeout", "90s", "-o", "json",
			"--ignore-preflight-errors", "root,cgroups,ports,disk,clock",
		})...)
	}
	known := func() string {
		return runKubectl(t, "get", "nodeidentity", "--ignore-not-found", node, "-o", "jsonpath={.spec.key}")
	}

	wrong := slices.Clone(words)
	wrong[hash] = "sha256:" + strings.Repeat("0", 64)
	if out, err := join(wrong); err == nil || !strings.Contains(err.Error(), "cloud") || known() != "" {
		t.Errorf("with another hash: %s, %v; the cloud knows the key %q", out, err, known())
	}
	out, err := join(words)
	if err != nil {
		t.Fatal(err)
	}
	if key := known(); key == "" || !strings.Contains(out, key) {
		t.Errorf("it says %s; the cloud knows the key %q", out, key)
	}
}

// TestInit_IsIdempotent: everything that frond init would make exists, and is what the hub and the cloudcores use.
func TestInit_IsIdempotent(t *testing.T) {
	out, err := runFrond(t, "init")
	if err != nil || !strings.Contains(out, "nothing to change") {
		t.Errorf("%s, %v", out, err)
	}
	for secret, entry := range map[string]string{"frond-hub-0": "tls.key", "frond-cloudcore": "hub.nk", "frond-admin": "admin.nk", "frond-ca": "ca.key"} {
		here, err := os.ReadFile(filepath.Join(shared.Dir(), "frond-system", secret, entry))
		if err != nil {
			t.Fatal(err)
		}
		there := runKubectl(t, "--namespace=frond-system", "get", "secret", secret, "--template={{index .data \""+entry+"\" | base64decode}}")
		if there != string(here) {
			t.Errorf("%s of Secret %s is not the file", entry, secret)
		}
	}
}
