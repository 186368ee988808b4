package tunnel_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/test/kit"
)

// startStolenNode runs an attacker that speaks NATS with a node's credentials. answer returns the frames that it sends for an open.
func startStolenNode(t *testing.T, e *tunnelPair, answer func() []protocol.Frame) *nats.Conn {
	t.Helper()
	nc := nodeConn(t, startLeaf(t, "gw-18", leafAddr(e.hub), nil))
	if _, err := nc.Subscribe("tunnel.gw-18.>", func(msg *nats.Msg) {
		if raw, err := protocol.ParseFrame(msg.Data); err != nil || raw.Kind != protocol.KindOpen {
			return
		}
		for _, raw := range answer() {
			_ = nc.Publish("tunnelup"+strings.TrimPrefix(msg.Subject, "tunnel"), raw.AppendTo(nil))
		}
	}); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the stolen node is reached", func() bool {
		c, err := e.dialer.Dial(t.Context(), "gw-18", port)
		if err == nil {
			_ = c.Close()
		}
		return !errors.Is(err, tunnel.ErrOffline)
	})
	return nc
}

// requireEcho checks that a stream is undisturbed.
func requireEcho(t *testing.T, from, to *tunnel.Conn) {
	t.Helper()
	want := fmt.Sprint(time.Now().UnixNano())
	if _, err := io.WriteString(from, want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(to, got); err != nil || string(got) != want {
		t.Fatalf("read %q, %v, want %q", got, err, want)
	}
}

// openPort is the request of a stream to a port of the node.
func openPort(port uint16) protocol.Frame {
	return protocol.OpenFrame(netip.AddrPortFrom(netip.Addr{}, port), "")
}

var acceptFrame = protocol.Frame{Kind: protocol.KindAccept, Window: 1 << 31}

// A bad frame of a stolen node on its own stream breaks that stream, is counted, and disturbs no other.
func TestDialer_StolenNodeBreaksOnlyItsOwnStream(t *testing.T) {
	for name, tt := range map[string]struct {
		sends []protocol.Frame
		code  protocol.Code
	}{
		"accepts twice":             {[]protocol.Frame{acceptFrame, acceptFrame}, protocol.CodeProtocol},
		"refuses after it said yes": {[]protocol.Frame{acceptFrame, {Kind: protocol.KindRefuse}}, protocol.CodeProtocol},
		"opens":                     {[]protocol.Frame{acceptFrame, openPort(1)}, protocol.CodeProtocol},
		"leaves a gap":              {[]protocol.Frame{acceptFrame, {Kind: protocol.KindData, Offset: 3, Payload: []byte("x")}}, protocol.CodeLost},
		"repeats":                   {[]protocol.Frame{acceptFrame, {Kind: protocol.KindData, Payload: []byte("x")}, {Kind: protocol.KindData, Payload: []byte("x")}}, protocol.CodeLost},
		"overruns the window": {append([]protocol.Frame{acceptFrame}, func() (all []protocol.Frame) {
			for i := range uint64(16) {
				all = append(all, protocol.Frame{Kind: protocol.KindData, Offset: i * protocol.MaxPayload, Payload: make([]byte, protocol.MaxPayload)})
			}
			return all
		}()...), protocol.CodeOverrun},
		"sends after the end":    {[]protocol.Frame{acceptFrame, {Kind: protocol.KindData, Flags: protocol.FlagFin}, {Kind: protocol.KindData, Payload: []byte("x")}}, protocol.CodeProtocol},
		"read what was not sent": {[]protocol.Frame{acceptFrame, {Kind: protocol.KindData, Consumed: 1}}, protocol.CodeProtocol},
		"sends a huge frame":     {[]protocol.Frame{acceptFrame, {Kind: protocol.KindData, Payload: make([]byte, 512<<10)}}, protocol.CodeProtocol},
		"sends an unknown kind":  {[]protocol.Frame{acceptFrame, {Kind: 99}}, protocol.CodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			e := startPair(t, tunnel.Config{}, tunnel.Config{})
			cloud, node := e.dialStream(t)
			startStolenNode(t, e, func() []protocol.Frame { return tt.sends })
			kit.Eventually(t, "the stream breaks", func() bool {
				c, err := e.dialer.Dial(t.Context(), "gw-18", port)
				if err == nil {
					defer func() { _ = c.Close() }()
					_ = c.SetReadDeadline(time.Now().Add(waitTimeout))
					_, err = io.Copy(io.Discard, readerOnly{c})
				}
				var broken *tunnel.BrokenError
				return errors.As(err, &broken) && broken.Code == tt.code && !broken.ByPeer
			})
			kit.Eventually(t, "it is counted", func() bool { return sumMetric(t, e.cloudMetrics, "frond_tunnel_broken_total", string(tt.code)) > 0 })
			requireEcho(t, cloud, node)
			requireEcho(t, node, cloud)
		})
	}
}

// readerOnly hides WriteTo.
type readerOnly struct{ io.Reader }

// A node that sends data before accept is refused.
func TestDialer_DataBeforeAcceptFailsTheDial(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	startStolenNode(t, e, func() []protocol.Frame { return []protocol.Frame{{Kind: protocol.KindData, Payload: []byte("x")}} })
	_, err := e.dialer.Dial(t.Context(), "gw-18", port)
	requireBroken(t, err, protocol.CodeProtocol)
}

// The text of a reset comes from the node: it must not add metrics, nor move a terminal's cursor.
func TestDialer_ResetTextIsSanitized(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	n := 0
	startStolenNode(t, e, func() []protocol.Frame {
		n++
		code := protocol.Code(fmt.Sprintf("invented-%d", n))
		return []protocol.Frame{acceptFrame, {Kind: protocol.KindReset, Payload: []byte(string(code) + "\x00\x1b[2Jhello\n" + strings.Repeat("é", 4000))}}
	})
	for range 3 {
		c, err := e.dialer.Dial(t.Context(), "gw-18", port)
		if err == nil {
			_, err = c.Read(make([]byte, 1))
			_ = c.Close()
		}
		if err == nil || strings.ContainsAny(err.Error(), "\x1b\n") || len(err.Error()) > 1024 {
			t.Errorf("error %q", err)
		}
	}
	if sum, other := sumMetric(t, e.cloudMetrics, "frond_tunnel_broken_total", ""), sumMetric(t, e.cloudMetrics, "frond_tunnel_broken_total", "other"); sum != other {
		t.Errorf("%v broken, %v of them other", sum, other)
	}
}

// A stolen node that has learned the id of another node's stream can do nothing with it.
func TestDialer_StolenNodeCannotAnswerForAnother(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, node := e.dialStream(t)
	nc := startStolenNode(t, e, func() []protocol.Frame { return []protocol.Frame{acceptFrame} })
	_, back := cloud.Subjects() // tunnelup.gw-17_example.<replica>.<id>
	_, id, _ := strings.Cut(strings.TrimPrefix(back, "tunnelup."), ".")
	evil := protocol.Frame{Kind: protocol.KindData, Payload: []byte("evil")}.AppendTo(nil)

	refused := func(code string, subject string, data []byte) {
		t.Helper()
		before := sumMetric(t, e.cloudMetrics, "frond_tunnel_refused_total", code)
		kit.Eventually(t, "refused as "+code, func() bool {
			if err := nc.Publish(subject, data); err != nil {
				t.Fatal(err)
			}
			return sumMetric(t, e.cloudMetrics, "frond_tunnel_refused_total", code) > before
		})
		requireEcho(t, cloud, node)
		requireEcho(t, node, cloud)
	}
	refused("foreign", "tunnelup.gw-18."+id, evil)
	replica, _, _ := strings.Cut(id, ".")
	refused("unknown", "tunnelup.gw-18."+replica+"."+protocol.NewStreamID(), evil)
	refused("garbage", "tunnelup.gw-18."+replica+".short", evil)

	// In the other node's name it may not publish at all: neither towards the cloud nor towards the node.
	down, _ := cloud.Subjects()
	for _, subject := range []string{back, down} {
		if err := nc.Publish(subject, evil); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	requireEcho(t, cloud, node)
	requireEcho(t, node, cloud)
}

// A node that grants an endless window makes the cloud send no more ahead than the cloud's own limit.
func TestConn_PeerWindowIsCapped(t *testing.T) {
	cfg := tunnel.Config{MaxWindow: 256 << 10}
	e := startPair(t, cfg, tunnel.Config{})
	startStolenNode(t, e, func() []protocol.Frame { return []protocol.Frame{acceptFrame} })
	c, err := e.dialer.Dial(t.Context(), "gw-18", port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Write(make([]byte, 1<<20)); n > cfg.MaxWindow || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("sent %d bytes ahead, %v", n, err)
	}
}

// A message on a node's subjects that is not a frame of its streams is refused and counted, and disturbs no stream.
func TestServer_RefusesMalformedFrames(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, node := e.dialStream(t)
	stream, _ := cloud.Subjects()
	elsewhere := stream[:strings.LastIndexByte(stream, '.')+1] + protocol.NewStreamID()
	open := openPort(port)
	next := open.AppendTo(nil)
	next[1] = 3
	address := protocol.OpenFrame(netip.MustParseAddrPort("10.1.2.3:80"), "")
	short := address
	short.Payload = short.Payload[:5]
	long := address
	long.Payload = append(bytes.Clone(long.Payload), make([]byte, 1000)...)
	for name, tt := range map[string]struct {
		subject, code string
		data          []byte
	}{
		"answer of JetStream to a forged reply": {elsewhere, "garbage", []byte(`{"type":"io.nats.jetstream.api.v1.consumer_info_response"}`)},
		"other subject":                         {"tunnel.gw-17_example.open", "garbage", open.AppendTo(nil)},
		"open with a short payload":             {elsewhere, "garbage", protocol.Frame{Kind: protocol.KindOpen}.AppendTo(nil)},
		"open with a long label":                {elsewhere, "garbage", protocol.Frame{Kind: protocol.KindOpen, Payload: make([]byte, 1000)}.AppendTo(nil)},
		"open of a later version":               {elsewhere, "version", next},
		"open of an address that is too short":  {elsewhere, "garbage", short.AppendTo(nil)},
		"open of an address with a long label":  {elsewhere, "garbage", long.AppendTo(nil)},
		"open of an address, not offered":       {elsewhere, "port", address.AppendTo(nil)},
		"open of an address, of a stream there": {stream, "duplicate", address.AppendTo(nil)},
		"open of a stream that exists":          {stream, "duplicate", open.AppendTo(nil)},
		"data of a stream that does not exist":  {elsewhere, "unknown", protocol.Frame{Kind: protocol.KindData, Payload: []byte("x")}.AppendTo(nil)},
		"reset of a stream that does not exist": {elsewhere, "unknown", protocol.Frame{Kind: protocol.KindReset}.AppendTo(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			before := sumMetric(t, e.nodeMetrics, "frond_tunnel_refused_total", tt.code)
			if err := e.cloudNC.Publish(tt.subject, tt.data); err != nil {
				t.Fatal(err)
			}
			kit.Eventually(t, "refused as "+tt.code, func() bool { return sumMetric(t, e.nodeMetrics, "frond_tunnel_refused_total", tt.code) > before })
			requireEcho(t, cloud, node)
		})
	}
}

// Frames still in flight when a stream ended are not suspicious, and open nothing.
func TestServer_LateFramesCountAsStale(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	cloud, atNode := e.dialStream(t)
	down, _ := cloud.Subjects()
	_, _ = cloud.Close(), atNode.Close()
	kit.Eventually(t, "the node forgets the stream", func() bool { return sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", "") == 0 })
	unknown := sumMetric(t, e.nodeMetrics, "frond_tunnel_refused_total", "unknown")
	for _, late := range []protocol.Frame{
		{Kind: protocol.KindData, Payload: []byte("x")}, openPort(port),
	} {
		before := sumMetric(t, e.nodeMetrics, "frond_tunnel_refused_total", "stale")
		if err := e.cloudNC.Publish(down, late.AppendTo(nil)); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, "it is refused as stale", func() bool { return sumMetric(t, e.nodeMetrics, "frond_tunnel_refused_total", "stale") > before })
	}
	if n := sumMetric(t, e.nodeMetrics, "frond_tunnel_refused_total", "unknown"); n != unknown {
		t.Errorf("%v messages of unknown streams", n-unknown)
	}
}

// Endless opens end at the backlog, and the port is free again once they have timed out.
func TestServer_OpenFloodEndsAtBacklog(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{Backlog: 8, MaxStreams: 16, OpenTimeout: 2 * time.Second, KeepAlive: time.Second})
	prefix := "tunnel.gw-17_example." + protocol.NewReplica() + "."
	open := openPort(port).AppendTo(nil)
	for range 5000 {
		if err := e.cloudNC.Publish(prefix+protocol.NewStreamID(), open); err != nil {
			t.Fatal(err)
		}
	}
	kit.Eventually(t, "most are refused", func() bool {
		if n := sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", ""); n > 16 {
			t.Fatalf("%v streams", n)
		}
		return sumMetric(t, e.nodeMetrics, "frond_tunnel_refused_total", "busy") >= 4900
	})
	kit.Eventually(t, "those that waited are forgotten", func() bool { return sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", "") == 0 })
	// The expired opens are still in the backlog, and yet another may wait in it.
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, _ = e.dialer.Dial(ctx, node, port) // there is no Accept
	}()
	kit.Eventually(t, "another waits", func() bool { return sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", "") == 1 })
	cancel()
	<-waiting
}
