package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// session is a kubectl with an endless stream to a gateway.
type session struct {
	what  string
	cmd   *exec.Cmd
	errs  bytes.Buffer
	ended chan sessionEnd
}

type sessionEnd struct {
	err error
	at  time.Time
}

// startSession starts a kubectl whose first line is known, and returns when it has printed it.
func startSession(ctx context.Context, t *testing.T, first string, args ...string) *session {
	t.Helper()
	s := &session{what: strings.Join(args, " "), cmd: kubectlCommand(ctx, args...), ended: make(chan sessionEnd, 1)}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = &s.errs
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != first {
		_ = s.cmd.Process.Kill() // it is not needed any more
		t.Fatalf("kubectl %s: %q, %v: %s", s.what, lines.Text(), s.cmd.Wait(), s.errs.String())
	}
	go func() { // until kubectl ends, which it does with ctx
		for lines.Scan() {
		}
		err := s.cmd.Wait()
		s.ended <- sessionEnd{err, time.Now()}
	}()
	t.Cleanup(func() { _ = s.cmd.Process.Kill() }) // mostly ended
	return s
}

// brokenStreams counts the streams that a cloudcore has broken for a reason.
func brokenStreams(ctx context.Context, cloudcore, reason string) float64 {
	v, err := shared.Metric(ctx, cloudcore, "frond_tunnel_broken_total", "reason="+reason)
	if err != nil {
		return 0 // none yet
	}
	return v
}

// TestRevokedGateway_SessionsEnd: open streams to a gateway, through either cloudcore, end when the gateway is revoked, and not when its
// silence is detected; new requests are refused at once with the reason. With another token it is a gateway again.
func TestRevokedGateway_SessionsEnd(t *testing.T) {
	if shared.Spec().Cloudcores < 2 {
		t.Skip("needs two cloudcores")
	}
	const edge = "edge-2"
	cores := []string{"cloudcore-1", "cloudcore-2"}
	applyManifest(t, scriptPod("revoked", edge, "echo here; sleep 36000"))
	awaitRunning(t, "app=revoked", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 3*waitTimeout)
	defer cancel()
	open := []*session{startSession(ctx, t, "here", "logs", "-f", "revoked")}
	before := map[string]float64{}
	for _, core := range cores {
		before[core] = mustMetric(t, core, "frond_tunnel_opened_total")
	}
	idle := func(core string) bool { return mustMetric(t, core, "frond_tunnel_opened_total") == before[core] }
	for execs := 0; execs < 2 || slices.ContainsFunc(cores, idle); execs++ { // the kernel chooses the cloudcore of a connection
		if execs > 20 {
			t.Fatal("20 connections of the apiserver went to one cloudcore")
		}
		open = append(open, startSession(ctx, t, "started", "exec", "revoked", "--", "sh", "-c", "echo started; sleep 36000"))
	}
	dropped := brokenStreams(ctx, cores[0], "dropped") + brokenStreams(ctx, cores[1], "dropped")
	t.Cleanup(func() { rejoinGateway(t, edge) })
	began := time.Now()
	// It waits until the Node shows missing heartbeats, which takes longer than this test waits; that is no error.
	var out struct{}
	if err := frondJSON(ctx, &out, "node", "revoke", edge, "--yes", "--timeout=1s"); err != nil {
		t.Logf("frond node revoke: %v", err)
	}
	for _, s := range open {
		select {
		case end := <-s.ended:
			t.Logf("%s ended %s after the revocation began: %v: %s", s.what, end.at.Sub(began).Round(time.Millisecond), end.err, s.errs.String())
			if strings.HasPrefix(s.what, "exec") && end.err == nil {
				t.Error("exec ended as if it were done")
			}
		case <-ctx.Done():
			t.Fatalf("%s goes on with a revoked gateway", s.what)
		}
	}
	if n := brokenStreams(ctx, cores[0], "dropped") + brokenStreams(ctx, cores[1], "dropped") - dropped; n < float64(len(open)-1) { // each exec has one
		t.Errorf("%v streams were dropped, of %d sessions; the others ended as the gateway was found silent", n, len(open))
	}
	// Both cloudcores refuse independently.
	eventually(t, "both cloudcores say why", func(ctx context.Context) string {
		asked := time.Now()
		_, err := shared.Kubectl(ctx, "", "logs", "revoked")
		t.Logf("kubectl logs after %s: %v", time.Since(asked).Round(time.Millisecond), err)
		if err == nil || !strings.Contains(err.Error(), "node "+edge+" is shut out: it was revoked at 20") {
			return fmt.Sprint("kubectl logs: ", err)
		}
		for _, core := range cores {
			if n, err := shared.Metric(ctx, core, "frond_gateway_refused_total", "reason=shut-out"); err != nil || n == 0 {
				return core + " has refused nobody"
			}
		}
		return ""
	})
}

// rejoinGateway enrols a revoked gateway again, with a token for its name and new keys.
func rejoinGateway(t *testing.T, edge string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*waitTimeout)
	defer cancel()
	keys := filepath.Join(fmt.Sprintf("/proc/%d/root", shared.PID(edge)), shared.Dir(), edge, "data", "identity")
	if err := os.RemoveAll(keys); err != nil {
		t.Error(err)
	}
	if err := shared.Kill(ctx, edge); err != nil {
		t.Error(err)
	}
	if err := shared.Start(ctx, edge); err != nil {
		t.Error(err)
	}
}
