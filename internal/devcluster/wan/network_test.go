package wan_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// needRoot skips the test where namespaces cannot be made, unless REQUIRE demands root.
func needRoot(t *testing.T) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "unshare", "--net", "true").Run(); err == nil && os.Geteuid() == 0 {
		if _, err := exec.LookPath("ip"); err == nil {
			return
		}
	}
	if strings.Contains(os.Getenv("REQUIRE"), "root") {
		t.Fatal("network namespaces need root and the ip command")
	}
	t.Skip("network namespaces need root and the ip command")
}

func TestNetwork_CutAndHeal(t *testing.T) {
	needRoot(t)
	ctx := t.Context()
	n := wan.Network{Prefix: fmt.Sprintf("frondtest-%d", os.Getpid())}
	t.Cleanup(func() { removeNetwork(t, n) })
	edges := []string{"edge-1", "edge-2"}
	for range 2 { // the second run changes nothing
		if err := n.Up(ctx, edges); err != nil {
			t.Fatal(err)
		}
	}
	r := startForwarder(t, n.Wan(), wan.Gateway+":7422", map[string]string{wan.Address(1): "edge-1", wan.Address(2): "edge-2"})
	c := r.dialLink(n.Namespace("edge-1"))
	if err := expectEcho(c, "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if l := r.requestControl(http.MethodGet, "/links"); l.Connections != 1 {
		t.Errorf("the gateway is not known by its address: %+v", l)
	}
	other := r.dialLink(n.Namespace("edge-2"))

	if err := n.Cut(ctx, "edge-1", false); err != nil {
		t.Fatal(err)
	}
	if s := n.State(ctx, "edge-1"); s != wan.Cut {
		t.Errorf("state %s", s)
	}
	if err := expectEcho(c, "lost", silenceWindow); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("during the cut: %v, want silence", err)
	}
	if err := expectEcho(other, "x", 5*time.Second); err != nil {
		t.Errorf("the other gateway: %v", err)
	}
	carrier, err := exec.CommandContext(ctx, "ip", "-n", n.Namespace("edge-1"), "link", "show", "wan0").Output()
	if err != nil || !strings.Contains(string(carrier), "LOWER_UP") {
		t.Errorf("the gateway sees the cut: %s %v", carrier, err)
	}
	if err := n.Heal(ctx, "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := expectWord(c, "lost"); err != nil { // TCP sends it again
		t.Errorf("after the heal: %v", err)
	}

	cutLoudly(t, n, r)
	if err := n.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if s := n.State(ctx, "edge-1"); s != wan.Unknown {
		t.Errorf("state %s after down", s)
	}
}

// cutLoudly cuts the link loudly and heals it, and checks its states and that it carries data again.
func cutLoudly(t *testing.T, n wan.Network, r forwarderFixture) {
	t.Helper()
	ctx := t.Context()
	if err := n.Cut(ctx, "edge-1", true); err != nil {
		t.Fatal(err)
	}
	if s := n.State(ctx, "edge-1"); s != wan.Down {
		t.Errorf("state %s", s)
	}
	if err := n.Heal(ctx, "edge-1"); err != nil {
		t.Fatal(err)
	}
	if s := n.State(ctx, "edge-1"); s != wan.Up {
		t.Errorf("state %s", s)
	}
	if err := expectEcho(r.dialLink(n.Namespace("edge-1")), "again", 10*time.Second); err != nil {
		t.Errorf("after the second heal: %v", err)
	}
}

func TestNetwork_GatewaysAreIsolated(t *testing.T) {
	needRoot(t)
	ctx := t.Context()
	n := wan.Network{Prefix: fmt.Sprintf("frondtest2-%d", os.Getpid())}
	t.Cleanup(func() { removeNetwork(t, n) })
	if err := n.Up(ctx, []string{"edge-1", "edge-2"}); err != nil {
		t.Fatal(err)
	}
	l, err := wan.Listen(n.Namespace("edge-2"), wan.Address(2)+":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for from, reachable := range map[string]bool{n.Wan(): true, n.Namespace("edge-1"): false} {
		limit := 4 * silenceWindow
		if reachable {
			limit = 10 * time.Second
		}
		dctx, cancel := context.WithTimeout(ctx, limit)
		c, err := wan.Dial(dctx, from, l.Addr().String())
		cancel()
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != reachable {
			t.Errorf("from %s: %v, want reachable %t", from, err, reachable)
		}
	}
}

func TestNetwork_RoutedPodsAreReachedUntilTheCut(t *testing.T) {
	needRoot(t)
	ctx := t.Context()
	n := wan.Network{Prefix: fmt.Sprintf("frondtest3-%d", os.Getpid())}
	t.Cleanup(func() { removeNetwork(t, n) })
	if err := n.Up(ctx, []string{"edge-1", "edge-2"}); err != nil {
		t.Fatal(err)
	}
	const pod = "10.244.1.7"
	out, err := exec.CommandContext(ctx, "ip", "-n", n.Namespace("edge-2"), "addr", "add", pod+"/24", "dev", "lo").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := wan.Listen(n.Namespace("edge-2"), ":7000")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	expect := func(when string, reachable bool) {
		t.Helper()
		for _, address := range []string{pod, wan.Address(2)} {
			limit := 4 * silenceWindow
			if reachable {
				limit = 10 * time.Second
			}
			dctx, cancel := context.WithTimeout(ctx, limit)
			c, err := wan.Dial(dctx, n.Namespace("edge-1"), address+":7000")
			cancel()
			if err == nil {
				_ = c.Close()
			}
			if (err == nil) != reachable {
				t.Errorf("%s, %s from edge-1: %v, want reachable %t", when, address, err, reachable)
			}
		}
	}
	expect("before", false)
	for range 2 { // the second run changes nothing
		if err := n.Route(ctx, map[string]string{"10.244.1.0/24": wan.Address(2)}); err != nil {
			t.Fatal(err)
		}
	}
	expect("routed", true)
	if err := n.Cut(ctx, "edge-2", false); err != nil {
		t.Fatal(err)
	}
	expect("cut", false)
	if err := n.Heal(ctx, "edge-2"); err != nil {
		t.Fatal(err)
	}
	expect("healed", true)
}

// removeNetwork removes the namespaces, also after the test's context has ended.
func removeNetwork(t *testing.T, n wan.Network) {
	t.Helper()
	if err := n.Down(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
}
