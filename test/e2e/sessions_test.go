package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// startPortForward starts kubectl port-forward, with additional environment variables, and returns its local address.
func startPortForward(ctx context.Context, t *testing.T, target, port string, env ...string) string {
	t.Helper()
	cmd := kubectlCommand(ctx, "port-forward", target, ":"+port)
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it does not end by itself
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		// Forwarding from 127.0.0.1:40123 -> 8080
		if _, rest, ok := strings.Cut(lines.Text(), "from "); ok {
			address, _, _ := strings.Cut(rest, " ")
			return address
		}
	}
	t.Fatalf("port-forward: %s", errs.String())
	return ""
}

// fileMiB is the size of the file that is fetched through a port-forward.
const fileMiB = 256

func TestPortForward_BigFile(t *testing.T) {
	needContainers(t)
	line := strings.Repeat("0123456789abcdef", 64)[1:] // 1 KiB with its end
	applyManifest(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: files, labels: {app: files}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-2}
  terminationGracePeriodSeconds: 1
  volumes: [{name: www, emptyDir: {}}]
  initContainers:
  - name: make
    image: localhost/frond/tools:dev
    imagePullPolicy: Never
    command: [sh, -c, "yes %s | head -n %d > /www/big"]
    volumeMounts: [{name: www, mountPath: /www}]
  containers:
  - {name: main, image: localhost/frond/http:dev, imagePullPolicy: Never, volumeMounts: [{name: www, mountPath: /www}]}
`, line, fileMiB<<10))
	awaitRunning(t, "app=files", 1)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	sum := sha256.New()
	for range fileMiB << 10 {
		_, _ = io.WriteString(sum, line+"\n") // never fails
	}
	want := hex.EncodeToString(sum.Sum(nil))
	var g errgroup.Group
	for _, websockets := range []string{"true", "false"} { // concurrently; without WebSocket kubectl uses SPDY
		address := startPortForward(ctx, t, "pod/files", "8080", "KUBECTL_PORT_FORWARD_WEBSOCKETS="+websockets)
		g.Go(func() error {
			began := time.Now()
			got, n, err := fetchSum(ctx, "http://"+address+"/big")
			if err == nil && got != want {
				err = fmt.Errorf("%d bytes with another checksum: %s", n, got)
			}
			t.Logf("websockets %s: %d MiB in %s", websockets, n>>20, time.Since(began).Round(time.Millisecond))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// fetchSum gets a page and returns its checksum and size.
func fetchSum(ctx context.Context, url string) (sum string, size int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", 0, err
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = reply.Body.Close() }()
	hash := sha256.New()
	size, err = io.Copy(hash, reply.Body)
	return hex.EncodeToString(hash.Sum(nil)), size, err
}

// logFollower is a running kubectl logs -f.
type logFollower struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func followLogs(ctx context.Context, t *testing.T, args ...string) *logFollower {
	t.Helper()
	cmd := kubectlCommand(ctx, append([]string{"logs", "-f"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // most still follow
		_ = cmd.Wait()
	})
	return &logFollower{cmd: cmd, lines: bufio.NewScanner(out)}
}

// readUntil reads lines up to one with this prefix.
func (f *logFollower) readUntil(prefix string) error {
	for f.lines.Scan() {
		if strings.HasPrefix(f.lines.Text(), prefix) {
			return nil
		}
	}
	return fmt.Errorf("the log ended before %q: %w", prefix, io.ErrUnexpectedEOF)
}

// TestLogs_StalledReaderHoldsUpNobody follows a log that grows by megabytes with twenty kubectls, one of which does not read. The
// log exceeds the two windows of 4 MiB on its way, and stays below the 10 MiB at which the kubelet rotates the file.
func TestLogs_StalledReaderHoldsUpNobody(t *testing.T) {
	needContainers(t)
	applyManifest(t, scriptPod("stalled", "edge-1", fmt.Sprintf("until test -f /go; do sleep 1; done; yes %s | head -n 9000; echo end; sleep 36000", strings.Repeat("0123456789abcdef", 64))))
	awaitRunning(t, "app=stalled", 1)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	followLogs(ctx, t, "stalled", "--pod-running-timeout=1m") // its output is never read
	var readers []*logFollower
	for range 19 {
		readers = append(readers, followLogs(ctx, t, "stalled"))
	}
	runKubectl(t, "exec", "stalled", "--", "touch", "/go")
	var g errgroup.Group
	for _, r := range readers {
		g.Go(func() error { return r.readUntil("end") })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

func TestLogs_OfflineGatewayIsReported(t *testing.T) {
	applyManifest(t, scriptPod("offline", "edge-1", "echo here; sleep 36000"))
	awaitRunning(t, "app=offline", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	defer cancel()
	// Either runtime writes a container's output; this container needs none.
	following := kubectlCommand(ctx, "logs", "-f", "offline")
	if err := following.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream is open", func(ctx context.Context) string {
		if sumMetric(ctx, "frond_tunnel_streams") == 0 {
			return "no stream"
		}
		return ""
	})
	if err := shared.Cut(ctx, "edge-1", false); err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	// kubectl exec uses WebSocket, then SPDY, possibly at two cloudcores. Its user waits for the first, and the second reports the error.
	eventually(t, "exec that waits once", func(ctx context.Context) string {
		began := time.Now()
		_, err := shared.Kubectl(ctx, "", "exec", "offline", "--", "true")
		if err == nil {
			return "answered"
		}
		t.Logf("exec ended after %s: %v", time.Since(began).Round(time.Millisecond), err)
		if !strings.Contains(err.Error(), "node edge-1 ") || !strings.Contains(err.Error(), "a moment ago") {
			return err.Error()
		}
		return ""
	})
	_ = following.Wait() // its end is what counts; kubectl takes the end of a stream for the end of the log
	t.Logf("logs -f ended %s after the cut", time.Since(cut).Round(time.Millisecond))
	if ctx.Err() != nil {
		t.Fatal("logs -f did not end")
	}
	eventually(t, "an error that says since when", func(ctx context.Context) string {
		began := time.Now()
		_, err := shared.Kubectl(ctx, "", "logs", "offline")
		if err == nil {
			return "answered"
		}
		t.Logf("after %s: %v", time.Since(began).Round(time.Millisecond), err)
		if !strings.Contains(err.Error(), "node edge-1 is offline since 20") {
			return err.Error()
		}
		return ""
	})
	if err := shared.Heal(ctx, "edge-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "logs of the node that is back", func(ctx context.Context) string {
		if _, err := shared.Kubectl(ctx, "", "logs", "offline"); err != nil {
			return err.Error()
		}
		return ""
	})
}

// sumMetric sums a metric over the running cloudcores.
func sumMetric(ctx context.Context, name string) float64 {
	sum := 0.0
	for i := range shared.Spec().Cloudcores {
		if v, err := shared.Metric(ctx, fmt.Sprint("cloudcore-", i+1), name); err == nil {
			sum += v
		}
	}
	return sum
}

// TestSessions_AfterCloudcoreKill kills each cloudcore in turn; the next command works at once on the other.
func TestSessions_AfterCloudcoreKill(t *testing.T) {
	if shared.Spec().Cloudcores < 2 {
		t.Skip("needs two cloudcores")
	}
	applyManifest(t, scriptPod("killed", "edge-1", "echo here; sleep 36000"))
	awaitRunning(t, "app=killed", 1)
	for _, victim := range []string{"cloudcore-1", "cloudcore-2"} {
		runKubectl(t, "logs", "killed")
		if err := shared.Kill(t.Context(), victim); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		eventually(t, "a session without "+victim, func(ctx context.Context) string {
			if _, err := shared.Kubectl(ctx, "", "logs", "killed"); err != nil {
				t.Logf("after %s: %v", time.Since(began).Round(time.Millisecond), err)
				return err.Error()
			}
			return ""
		})
		t.Logf("%s killed: logs after %s", victim, time.Since(began).Round(time.Millisecond))
		if err := shared.Start(t.Context(), victim); err != nil {
			t.Fatal(err)
		}
	}
}
