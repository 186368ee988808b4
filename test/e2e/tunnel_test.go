package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// scriptPod is a pod on one gateway whose container runs a script.
func scriptPod(name, edge, script string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - name: main
    image: localhost/frond/tools:dev
    imagePullPolicy: Never
    stdin: true
    command: [sh, -c, %[3]q]
`, name, edge, script)
}

// kubectlCommand returns a command of the real kubectl whose streams the test can set.
func kubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(shared.Dir(), "bin", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig())
	return cmd
}

func TestLogs_GatewayPod(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, scriptPod("logs", "edge-1", "for i in 1 2 3; do echo line $i; done; read word; echo the word was $word; exit 3"))
	awaitRunning(t, "app=logs", 1)
	eventually(t, "the log", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "logs", "logs")
		if err != nil || out != "line 1\nline 2\nline 3\n" {
			return fmt.Sprintf("%q %v", out, err)
		}
		return ""
	})
	for options, want := range map[string]string{
		"--tail=1":                          "line 3\n",
		"--limit-bytes=7":                   "line 1\n",
		"--since=1h --tail=2":               "line 2\nline 3\n",
		"--since-time=2100-01-01T00:00:00Z": "",
	} {
		args := append([]string{"logs", "logs"}, strings.Fields(options)...)
		if got := runKubectl(t, args...); got != want {
			t.Errorf("kubectl logs %s: %q, want %q", options, got, want)
		}
	}
	stamped := runKubectl(t, "logs", "logs", "--timestamps", "--tail=1")
	stamp, line, _ := strings.Cut(stamped, " ")
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil || line != "line 3\n" {
		t.Errorf("kubectl logs --timestamps: %q", stamped)
	}
	if out, err := shared.Kubectl(t.Context(), "", "logs", "logs", "--previous"); err == nil {
		t.Errorf("kubectl logs --previous of a container that never ended: %q", out)
	}
	// The container ends at this input, is restarted, and its first log is still available.
	if _, err := shared.Kubectl(t.Context(), "end\n", "attach", "-i", "logs"); err != nil {
		t.Logf("attach: %v", err) // it may see the end of the container as an error
	}
	eventually(t, "the previous log", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "logs", "logs", "--previous")
		if err != nil || out != "line 1\nline 2\nline 3\nthe word was end\n" {
			return fmt.Sprintf("%q %v", out, err)
		}
		return ""
	})
}

// exitCode is the exit code of a command; -1 if it could not run.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}

func TestExec_GatewayPod(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, scriptPod("exec", "edge-1", "sleep 36000"))
	awaitRunning(t, "app=exec", 1)
	run := func(stdin io.Reader, args ...string) (stdout, stderr string, code int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		cmd := kubectlCommand(ctx, append([]string{"exec"}, args...)...)
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
		err := cmd.Run()
		return out.String(), errs.String(), exitCode(err)
	}
	for _, code := range []int{0, 1, 2, 42, 137} {
		if _, stderr, got := run(nil, "exec", "--", "sh", "-c", fmt.Sprintf("exit %d", code)); got != code {
			t.Errorf("exit %d became %d: %s", code, got, stderr)
		}
	}
	if out, errs, code := run(nil, "exec", "--", "sh", "-c", "echo out; echo err >&2"); out != "out\n" || errs != "err\n" || code != 0 {
		t.Errorf("streams: %q, %q, %d", out, errs, code)
	}
	// The end of standard input arrives while the output still continues: sha256sum prints nothing before it.
	data := bytes.Repeat([]byte{0, 1, 2, 0xff, '\r', '\n', 0x1b, 4}, 512<<10) // 4 MiB, all of it awkward
	sum := sha256.Sum256(data)
	if out, errs, code := run(bytes.NewReader(data), "-i", "exec", "--", "sha256sum"); code != 0 || !strings.HasPrefix(out, hex.EncodeToString(sum[:])) {
		t.Errorf("standard input: %q, %q, %d", out, errs, code)
	}
	if out, errs, code := run(bytes.NewReader(data), "-i", "exec", "--", "cat"); code != 0 || out != string(data) {
		t.Errorf("there and back: %d bytes, %q, %d", len(out), errs, code)
	}
	if _, errs, code := run(nil, "exec", "--", "no-such-program"); code == 0 || !strings.Contains(errs, "no-such-program") {
		t.Errorf("a program that is not there: %q, %d", errs, code)
	}
}

// TestExec_WebSocketAndSPDY uses WebSocket, kubectl's first choice, and SPDY, as older ones do.
func TestExec_WebSocketAndSPDY(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, scriptPod("protocols", "edge-2", "sleep 36000"))
	awaitRunning(t, "app=protocols", 1)
	data := bytes.Repeat([]byte{0, 1, 2, 0xff, '\r', '\n', 0x1b, 4}, 128<<10) // 1 MiB
	for websockets, upgrade := range map[string]string{"true": "Upgrade: websocket", "false": "Upgrade: SPDY/3.1"} {
		ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
		defer cancel()
		cmd := kubectlCommand(ctx, "exec", "-i", "-v=8", "protocols", "--", "sh", "-c", "cat; echo done >&2; exit 42")
		cmd.Env = append(cmd.Env, "KUBECTL_REMOTE_COMMAND_WEBSOCKETS="+websockets)
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &out, &errs
		code := exitCode(cmd.Run())
		if code != 42 || !bytes.Equal(out.Bytes(), data) || !strings.Contains(errs.String(), "done\n") || !strings.Contains(errs.String(), upgrade) {
			t.Errorf("websockets %s: code %d, %d bytes, %s", websockets, code, out.Len(), errs.String())
		}
	}
}

func TestCopy_TreeBothWays(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, scriptPod("copy", "edge-2", "mkdir -p /tmp; sleep 36000"))
	awaitRunning(t, "app=copy", 1)
	from, back := filepath.Join(t.TempDir(), "tree"), filepath.Join(t.TempDir(), "tree")
	want := map[string]string{}
	for i := range 40 {
		name := filepath.Join(fmt.Sprint("d", i%7), fmt.Sprint("e", i%3), fmt.Sprint("file ", i))
		want[name] = strings.Repeat(fmt.Sprint(i, "\x00\n"), i*i*20)
		if err := os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(want[name]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	runKubectl(t, "cp", from, "copy:/tmp/tree")
	runKubectl(t, "cp", "copy:/tmp/tree", back)
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join(back, name))
		if err != nil || string(got) != content {
			t.Errorf("%s: %d bytes, want %d, %v", name, len(got), len(content), err)
		}
	}
}

func TestDebug_EphemeralContainer(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, scriptPod("debug", "edge-1", "sleep 36000"))
	awaitRunning(t, "app=debug", 1)
	runKubectl(t, "debug", "debug", "--image=localhost/frond/tools:dev", "--image-pull-policy=Never", "--container=look", "--profile=general",
		"--", "sh", "-c", "echo looked; sleep 36000")
	eventually(t, "the log of the ephemeral container", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "logs", "debug", "-c", "look")
		if err != nil || out != "looked\n" {
			return fmt.Sprintf("%q %v", out, err)
		}
		return ""
	})
	if out := runKubectl(t, "exec", "debug", "-c", "look", "--", "echo", "inside"); out != "inside\n" {
		t.Errorf("exec in the ephemeral container: %q", out)
	}
}

func TestAttach_ReadsAndWrites(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, scriptPod("attach", "edge-1", "while read line; do echo got $line; done; sleep 36000"))
	awaitRunning(t, "app=attach", 1)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd := kubectlCommand(ctx, "attach", "-i", "attach")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for _, word := range []string{"one", "two"} {
		if _, err := io.WriteString(in, word+"\n"); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != "got "+word {
			t.Fatalf("%q, %v: %s", lines.Text(), lines.Err(), errs.String())
		}
	}
	cancel() // as Ctrl-C would
	_ = cmd.Wait()
	if list := awaitRunning(t, "app=attach", 1); list[0].Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("the container did not survive the end of attach")
	}
}
