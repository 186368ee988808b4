package tunnel_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

func TestDialer_OfflineNodeFailsAtOnce(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	begun := time.Now()
	_, err := e.dialer.Dial(t.Context(), "gw-18", port)
	if !errors.Is(err, tunnel.ErrOffline) {
		t.Errorf("%v, want ErrOffline", err)
	}
	t.Logf("told after %v: %v", time.Since(begun), err)
}

// kubectl exec dials twice, one after the other; its user waits once.
func TestDialer_DialsToSilentNodeWaitOnce(t *testing.T) {
	t.Parallel()
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	e.link.Silence()
	begun := time.Now()
	var g errgroup.Group
	for range 2 { // the second starts a moment later, and ends with the first
		g.Go(func() error { _, err := e.dialer.Dial(t.Context(), node, port); return err })
	}
	if err := g.Wait(); !errors.Is(err, tunnel.ErrOffline) {
		t.Fatalf("%v, want ErrOffline", err)
	}
	first := time.Since(begun)
	again := time.Now()
	if _, err := e.dialer.Dial(t.Context(), node, port); !errors.Is(err, tunnel.ErrOffline) {
		t.Fatalf("%v, want ErrOffline", err)
	}
	t.Logf("silence was told after %v, then after %v", first, time.Since(again))
	if waited := time.Since(again); waited > time.Second {
		t.Errorf("the second try waited %v as well", waited)
	}
}

// The second try of kubectl exec may go through another cloudcore: its Dialer has received the first one's notice.
func TestDialer_SilentNodeIsSharedBetweenDialers(t *testing.T) {
	t.Parallel()
	e := startPair(t, tunnel.Config{OpenTimeout: time.Second}, tunnel.Config{})
	registry := prometheus.NewRegistry()
	nc := cloudConn(t, e.hub.ClientURL())
	other, err := tunnel.NewDialer(nc, tunnel.Config{OpenTimeout: 10 * waitTimeout}, tunnel.NewMetrics(registry), newLogger(t, "other"))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, other.Start)
	<-other.Ready()
	e.link.Silence()
	waiting := make(chan error, 1)
	go func() {
		_, err := other.Dial(t.Context(), node, port)
		waiting <- err
	}()
	kit.Eventually(t, "the other dial waits", func() bool { return sumMetric(t, registry, "frond_tunnel_streams", "") == 1 })
	if _, err := e.dialer.Dial(t.Context(), node, port); !errors.Is(err, tunnel.ErrOffline) {
		t.Fatalf("%v, want ErrOffline", err)
	}
	if err := awaitError(t, "the other dial", waiting); !errors.Is(err, tunnel.ErrOffline) {
		t.Errorf("%v, want ErrOffline", err)
	}
}

// A notice of another Dialer applies to a node that was not heard a moment ago, and a malformed notice to no node.
func TestDialer_SilentNoticeIgnoredForHeardNode(t *testing.T) {
	e := startPair(t, tunnel.Config{OpenTimeout: waitTimeout}, tunnel.Config{}) // a frame received in that time counts
	cloud, atNode := e.dialStream(t)
	replica := protocol.NewReplica()
	tell := func(node string, verdict []byte) {
		t.Helper()
		if err := e.cloudNC.Publish(protocol.SilentPrefix+wire.Escape(node)+"."+replica, verdict); err != nil {
			t.Fatal(err)
		}
	}
	requireEcho(t, atNode, cloud)
	garbage := sumMetric(t, e.cloudMetrics, "frond_tunnel_refused_total", "garbage")
	tellGarbage := func() {
		tell("gw-18", []byte(`{"kind":"Pod"}`))
		garbage++
	}
	kit.Eventually(t, "another node is believed to be silent", func() bool {
		tell(node, protocol.Reason{Code: protocol.CodeSilent}.Frame(protocol.KindReset).AppendTo(nil))
		tellGarbage()
		tell("gw-18", protocol.Reason{Code: protocol.CodeSilent}.Frame(protocol.KindReset).AppendTo(nil))
		_, err := e.dialer.Dial(t.Context(), "gw-18", port) // it is not linked
		return err != nil && strings.Contains(err.Error(), "a moment ago")
	})
	if _, _, err := e.openStream(t.Context()); err != nil {
		t.Errorf("a node that was heard a moment ago: %v", err)
	}
	tellGarbage() // the last of all: once it is counted, no earlier notice can arrive after the heartbeat
	kit.Eventually(t, "all that is no verdict is counted", func() bool {
		return sumMetric(t, e.cloudMetrics, "frond_tunnel_refused_total", "garbage") == garbage
	})
	e.dialer.Heard("gw-18")
	if _, err := e.dialer.Dial(t.Context(), "gw-18", port); err == nil || strings.Contains(err.Error(), "a moment ago") {
		t.Errorf("a node whose heartbeat came is not asked: %v", err)
	}
	tell("gw-19", []byte(`{"kind":"Pod"}`))
	requireEcho(t, atNode, cloud)
	if _, err := e.dialer.Dial(t.Context(), "gw-19", port); err == nil || strings.Contains(err.Error(), "a moment ago") {
		t.Errorf("garbage was taken for a verdict: %v", err)
	}
}

// openShortStream opens a stream with short timeouts and keeps both ends reading; the channels receive the final errors.
func openShortStream(t *testing.T) (e *tunnelPair, cloudErr, nodeErr <-chan error) {
	t.Helper()
	cfg := tunnel.Config{KeepAlive: 200 * time.Millisecond, PeerTimeout: 2 * time.Second}
	e = startPair(t, cfg, cfg)
	cloud, node := e.dialStream(t)
	read := func(c io.Reader) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
		return ended
	}
	return e, read(cloud), read(node)
}

func awaitError(t *testing.T, what string, ended <-chan error) error {
	t.Helper()
	return kit.Receive(t, what, ended)
}

func TestConn_SilentLinkIsNoticedByBothEnds(t *testing.T) {
	t.Parallel()
	for name, directions := range map[string][]relaytest.Direction{
		"both": nil, "to hub": {relaytest.ToTarget}, "from hub": {relaytest.FromTarget},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, cloud, node := openShortStream(t)
			begun := time.Now()
			e.link.Silence(directions...)
			// An end that still receives may be told by the other before its own timeout.
			requireBroken(t, awaitError(t, "cloud", cloud), protocol.CodeSilent)
			t.Logf("cloud after %v", time.Since(begun))
			requireBroken(t, awaitError(t, "node", node), protocol.CodeSilent)
			t.Logf("node after %v", time.Since(begun))
		})
	}
}

func TestConn_CutLinkIsNoticedByBothEnds(t *testing.T) {
	t.Parallel()
	e, cloud, node := openShortStream(t)
	begun := time.Now()
	e.link.Cut()
	requireBroken(t, awaitError(t, "cloud", cloud), protocol.CodeOffline)
	t.Logf("cloud after %v", time.Since(begun))
	requireBroken(t, awaitError(t, "node", node), protocol.CodeOffline)
	t.Logf("node after %v", time.Since(begun))
	e.link.Heal()
	kit.Eventually(t, "a new stream after the heal", func() bool { _, _, err := e.openStream(t.Context()); return err == nil })
}

// A killed cloudcore sends nothing any more: its node detects it, and another Dialer works at once.
func TestConn_KilledCloudIsNoticedByTheNode(t *testing.T) {
	t.Parallel()
	e, _, node := openShortStream(t)
	e.cloudNC.Close()
	requireBroken(t, awaitError(t, "node", node), protocol.CodeOffline, protocol.CodeSilent)
	other, err := tunnel.NewDialer(cloudConn(t, e.hub.ClientURL()), tunnel.Config{}, tunnel.NewMetrics(nil), newLogger(t, "other"))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, other.Start)
	<-other.Ready()
	c, err := other.Dial(t.Context(), "gw-17.example", port)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// A node's process that is killed and started again does not know the stream.
func TestConn_RestartedNodeIsNoticedByTheCloud(t *testing.T) {
	t.Parallel()
	e, cloud, _ := openShortStream(t)
	e.nodeNC.Close()
	err := awaitError(t, "cloud", cloud)
	requireBroken(t, err, protocol.CodeOffline, protocol.CodeUnknown)
}

// A loss by NATS while the cloud's connection is cut shows as an error, and never as a gap in the bytes.
func TestConn_LostMessagesBreakTheStream(t *testing.T) {
	cfg := tunnel.Config{KeepAlive: 200 * time.Millisecond, PeerTimeout: 5 * time.Second}
	e := startPair(t, cfg, cfg)
	cloud, node := e.dialStream(t)
	var g errgroup.Group
	g.Go(func() error {
		counter := make([]byte, 1<<10)
		for n := 0; ; n++ {
			for i := range counter {
				counter[i] = byte(n)
			}
			if _, err := node.Write(counter); err != nil {
				requireBroken(t, err, protocol.CodeLost, protocol.CodeOffline, protocol.CodeSilent)
				return nil
			}
		}
	})
	block := make([]byte, 1<<10)
	var err error
	for n := 0; ; n++ {
		if n%500 == 499 { // until a loss hits data in flight
			e.client.Reset()
		}
		if _, err = io.ReadFull(cloud, block); err != nil {
			break
		}
		if block[0] != byte(n) || block[len(block)-1] != byte(n) {
			t.Fatalf("block %d holds %d to %d", n, block[0], block[len(block)-1])
		}
	}
	requireBroken(t, err, protocol.CodeLost, protocol.CodeOffline, protocol.CodeSilent)
	t.Log(err)
	_ = g.Wait()
	kit.Eventually(t, "a new stream", func() bool { _, _, err := e.openStream(t.Context()); return err == nil })
}
