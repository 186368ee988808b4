package tunnel_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/test/kit"
)

// requireBroken checks that an error is a BrokenError with one of the codes.
func requireBroken(t *testing.T, err error, codes ...protocol.Code) {
	t.Helper()
	if broken := asBrokenError(t, err); !slices.Contains(codes, broken.Code) {
		t.Fatalf("broken by %s, want one of %v", broken.Code, codes)
	}
}

func asBrokenError(t *testing.T, err error) (broken *tunnel.BrokenError) {
	t.Helper()
	if !errors.As(err, &broken) {
		t.Fatalf("%v, want a BrokenError", err)
	}
	return broken
}

func TestConn_HalfClose(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, node := e.dialStream(t)
	for name, ends := range map[string][2]*tunnel.Conn{"from the cloud": {cloud, node}, "from the node": {node, cloud}} {
		from, to := ends[0], ends[1]
		if _, err := io.WriteString(from, "last words"); err != nil {
			t.Fatal(err)
		}
		if err := from.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(to); err != nil || string(got) != "last words" {
			t.Errorf("%s: read %q, %v", name, got, err)
		}
		if _, err := from.Write([]byte("more")); err == nil {
			t.Errorf("%s: wrote after CloseWrite", name)
		}
	}
}

// After a peer's Close the bytes that it wrote can still be read, and writing fails with an error.
func TestConn_CloseIsSeenByThePeer(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, node := e.dialStream(t)
	if _, err := io.WriteString(cloud, "bye"); err != nil {
		t.Fatal(err)
	}
	if err := cloud.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(node); err != nil || string(got) != "bye" {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := node.Write([]byte("x")); err == nil {
		t.Error("wrote to a closed peer")
	}
	if err := cloud.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if err := node.Close(); err != nil {
		t.Error(err)
	}
	kit.Eventually(t, "both ends forget the stream", func() bool {
		return sumMetric(t, e.cloudMetrics, "frond_tunnel_streams", "") == 0 && sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", "") == 0
	})
}

func TestConn_ResetCarriesItsReason(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, node := e.dialStream(t)
	if _, err := io.WriteString(node, "partial"); err != nil {
		t.Fatal(err)
	}
	node.Reset("the kubelet went away")
	got, err := io.ReadAll(cloud)
	if string(got) != "partial" {
		t.Errorf("read %q before the error", got)
	}
	requireBroken(t, err, protocol.CodeReset)
	broken := asBrokenError(t, err)
	if !broken.ByPeer || broken.Text != "the kubelet went away" {
		t.Errorf("%+v", broken)
	}
	if _, err := cloud.Write([]byte("x")); !errors.As(err, &broken) {
		t.Errorf("write after the reset: %v", err)
	}
}

// A user that an error has woken may close the stream before breakStream removes it.
func TestConn_ClosedBecauseOfItsErrorIsCountedAsBroken(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, _ := e.dialStream(t)
	cloud.WakeWithError(&tunnel.BrokenError{Code: protocol.CodeSilent, Text: "nothing heard of the peer"})
	_, err := cloud.Read(make([]byte, 1))
	requireBroken(t, err, protocol.CodeSilent)
	if err := cloud.Close(); err != nil {
		t.Error(err)
	}
	if n := sumMetric(t, e.cloudMetrics, "frond_tunnel_broken_total", string(protocol.CodeSilent)); n != 1 {
		t.Errorf("%v streams counted as broken, want 1", n)
	}
}

func TestDialer_RefusalReachesTheCaller(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	refused := func(err error, code protocol.Code, text string) {
		t.Helper()
		var r *tunnel.RefusedError
		if !errors.As(err, &r) || r.Code != code || !strings.Contains(r.Text, text) {
			t.Errorf("%v, want %s with %q", err, code, text)
		}
	}
	_, err := e.dialer.Dial(t.Context(), node, 22)
	refused(err, protocol.CodePort, "nothing listens on port 22")

	var g errgroup.Group
	g.Go(func() error {
		in, err := e.listener.Next()
		if err == nil {
			if in.Label() != "jane" || in.Port() != port {
				t.Errorf("label %q, port %d", in.Label(), in.Port())
			}
			in.Refuse("connection refused")
		}
		return err
	})
	_, err = e.dialer.Dial(tunnel.WithLabel(t.Context(), "jane"), node, port)
	refused(err, protocol.CodeDeclined, "connection refused")
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if err := e.listener.Close(); err != nil {
		t.Error(err)
	}
	_, err = e.dialer.Dial(t.Context(), node, port)
	refused(err, protocol.CodePort, "")
	if _, err := e.listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if again, err := e.server.Listen(port); err != nil || again.Addr().String() != node+":10250" {
		t.Errorf("listen again: %v", err)
	}
}

// One reader stalls with a full window; the other streams move all their bytes.
func TestConn_StalledReaderDelaysNoOther(t *testing.T) {
	cfg := tunnel.Config{MaxWindow: 256 << 10}
	e := startPair(t, cfg, cfg)
	stalled, source := e.dialStream(t)
	if err := source.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	n, err := source.Write(make([]byte, 8<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("wrote %d to a reader that reads nothing: %v", n, err)
	}
	if n > cfg.MaxWindow {
		t.Errorf("%d bytes lie before a reader that reads nothing", n)
	}
	var g errgroup.Group
	for range 19 {
		cloud, node := e.dialStream(t)
		want := make([]byte, 1<<20)
		_, _ = rand.Read(want)
		g.Go(func() error {
			if _, err := node.Write(want); err != nil {
				return err
			}
			return node.CloseWrite()
		})
		g.Go(func() error {
			got, err := io.ReadAll(cloud)
			if err == nil && !bytes.Equal(got, want) {
				err = errors.New("other bytes than were sent")
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	// The stalled stream lost nothing either.
	if err := source.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(stalled); err != nil || len(got) != n {
		t.Errorf("read %d of %d bytes, %v", len(got), n, err)
	}
}

func TestServer_MaxStreams(t *testing.T) {
	e := startPair(t, tunnel.Config{MaxStreams: 3}, tunnel.Config{MaxStreams: 2})
	e.dialStream(t)
	second, atNode := e.dialStream(t)
	_, err := e.dialer.Dial(t.Context(), node, port)
	var refused *tunnel.RefusedError
	if !errors.As(err, &refused) || refused.Code != protocol.CodeStreams {
		t.Errorf("third stream of two: %v", err)
	}
	if err := errors.Join(second.Close(), atNode.Close()); err != nil {
		t.Fatal(err)
	}
	e.dialStream(t)
}

func TestDialer_MaxStreams(t *testing.T) {
	e := startPair(t, tunnel.Config{MaxStreams: 1}, tunnel.Config{})
	e.dialStream(t)
	if _, err := e.dialer.Dial(t.Context(), node, port); !errors.Is(err, tunnel.ErrTooMany) {
		t.Errorf("%v, want ErrTooMany", err)
	}
}

func TestConn_IdleTimeout(t *testing.T) {
	short := tunnel.Config{KeepAlive: 40 * time.Millisecond, IdleTimeout: 300 * time.Millisecond}
	e := startPair(t, short, tunnel.Config{KeepAlive: 40 * time.Millisecond})
	cloud, node := e.dialStream(t)
	_, err := cloud.Read(make([]byte, 1))
	requireBroken(t, err, protocol.CodeIdle)
	_, err = node.Read(make([]byte, 1))
	requireBroken(t, err, protocol.CodeIdle)
}

// Keepalives keep an idle stream alive for many times PeerTimeout.
func TestConn_KeepAliveOutlivesPeerTimeout(t *testing.T) {
	t.Parallel()
	cfg := tunnel.Config{KeepAlive: 50 * time.Millisecond, PeerTimeout: 5 * time.Second}
	e := startPair(t, cfg, tunnel.Config{KeepAlive: 50 * time.Millisecond, PeerTimeout: 5 * time.Second})
	cloud, node := e.dialStream(t)
	if err := cloud.SetReadDeadline(time.Now().Add(7 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := cloud.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("quiet stream: %v", err)
	}
	if _, err := node.Write([]byte("x")); err != nil {
		t.Error(err)
	}
}

// Drop and the end of Start break open streams, and both ends learn the reason.
func TestDialer_DropAndStopBreakStreams(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, node := e.dialStream(t)
	if n := e.dialer.Drop("gw-18", "not this one"); n != 0 {
		t.Errorf("dropped %d streams of a node that has none", n)
	}
	if n := e.dialer.Drop("gw-17.example", "certificate revoked"); n != 1 {
		t.Errorf("dropped %d streams", n)
	}
	for name, c := range map[string]*tunnel.Conn{"cloud": cloud, "node": node} {
		_, err := c.Read(make([]byte, 1))
		if b := asBrokenError(t, err); b.Code != protocol.CodeDropped || b.Text != "certificate revoked" {
			t.Errorf("%s: %v", name, err)
		}
	}

	cloud, node = e.dialStream(t)
	e.stopNode()
	_, err := cloud.Read(make([]byte, 1))
	requireBroken(t, err, protocol.CodeStopping)
	_, err = node.Read(make([]byte, 1))
	requireBroken(t, err, protocol.CodeStopping)
	if _, err := e.listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after the end: %v", err)
	}
	if _, err := e.dialer.Dial(t.Context(), "gw-17.example", port); !errors.Is(err, tunnel.ErrOffline) {
		t.Errorf("dial of a node that stopped: %v", err)
	}
	e.stopCloud()
	if _, err := e.dialer.Dial(t.Context(), "gw-17.example", port); !errors.Is(err, tunnel.ErrNotServing) {
		t.Errorf("dial after the end: %v", err)
	}
}

// A dial that is given up leaves no stream at either end.
func TestDialer_CancelledDialLeavesNothing(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{OpenTimeout: 10 * waitTimeout}) // the node must be told
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan error, 1)
	go func() {
		_, err := e.dialer.Dial(ctx, node, port) // there is no Accept
		waiting <- err
	}()
	kit.Eventually(t, "the node hears of it", func() bool { return sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", "") == 1 })
	cancel()
	if err := <-waiting; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
	kit.Eventually(t, "both ends forget it", func() bool {
		return sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", "") == 0 && sumMetric(t, e.cloudMetrics, "frond_tunnel_streams", "") == 0
	})
	e.dialStream(t) // and the listener skips it
}
