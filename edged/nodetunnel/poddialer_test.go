package nodetunnel_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/edged/nodetunnel"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// TestPodDialer_AdmitsOwnPodsAlone tries addresses with a store as filled by a stolen cloudcore: the runtime and the machine decide.
func TestPodDialer_AdmitsOwnPodsAlone(t *testing.T) {
	pods := []store.Entry{
		{Object: []byte(`{"metadata":{"uid":"web"},"spec":{"nodeName":"gw"},"status":{"phase":"Running","podIPs":[{"ip":"10.1.0.2"},{"ip":"fd00::2"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"mirror","annotations":{"kubernetes.io/config.mirror":"static"}},"spec":{"nodeName":"gw"},"status":{"phase":"Running","podIPs":[{"ip":"10.1.0.3"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"done"},"spec":{"nodeName":"gw"},"status":{"phase":"Succeeded","podIPs":[{"ip":"10.1.0.4"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"far"},"spec":{"nodeName":"other"},"status":{"phase":"Running","podIPs":[{"ip":"10.1.0.5"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"forged"},"spec":{"nodeName":"gw"},"status":{"phase":"Running","podIPs":[{"ip":"192.168.1.50"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"forged-host"},"spec":{"nodeName":"gw","hostNetwork":true,"containers":[{"ports":[{"containerPort":502}]}]},"status":{"phase":"Running","podIPs":[{"ip":"192.168.1.51"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"host"},"spec":{"nodeName":"gw","hostNetwork":true,"containers":[{"ports":[{"containerPort":53,"protocol":"UDP"}]}]},"status":{"phase":"Running","podIPs":[{"ip":"192.168.1.10"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"host-2"},"spec":{"nodeName":"gw","hostNetwork":true,"initContainers":[{"ports":[{"containerPort":9100,"protocol":"TCP"}]}]},"status":{"phase":"Running","podIPs":[{"ip":"192.168.1.10"}]}}`)},
		{Object: []byte(`{"metadata":{"uid":"loop"},"spec":{"nodeName":"gw"},"status":{"phase":"Running","podIPs":[{"ip":"127.0.0.1"}]}}`)},
		{Object: []byte(`no pod at 10.1.0.2`)},
	}
	given := map[string]netip.Addr{"web": netip.MustParseAddr("10.1.0.2"), "static": netip.MustParseAddr("10.1.0.3"), "loop": netip.MustParseAddr("127.0.0.1")}
	host := func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.IPv4(192, 168, 1, 10), Mask: net.CIDRMask(24, 32)}, &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}, nil
	}
	cfg := nodetunnel.Config{
		Node: "gw", StoredPods: func() []store.Entry { return pods }, HostAddresses: host,
		RuntimeAddresses: func(_ context.Context, uid string) ([]netip.Addr, error) { return []netip.Addr{given[uid]}, nil },
	}
	for target, refused := range map[string]string{
		"10.1.0.2:80":       "",
		"10.1.0.2:9999":     "", // any port: as on any cluster
		"10.1.0.3:80":       "",
		"10.1.0.4:80":       "no running pod of this node has the address 10.1.0.4",
		"10.1.0.5:80":       "no running pod of this node has the address 10.1.0.5",
		"10.1.0.1:80":       "no running pod",
		"192.168.1.50:502":  "the container runtime has no running pod with the address 192.168.1.50",
		"192.168.1.51:502":  "the address 192.168.1.51 of a pod in the host's network is not this machine's",
		"192.168.1.10:53":   "no pod in the host's network declares the TCP port 53; add it to the ports of its container",
		"192.168.1.10:22":   "declares the TCP port 22",
		"192.168.1.10:9100": "",
		"127.0.0.1:10250":   "127.0.0.1 is never a pod's address",
		"169.254.169.254:1": "169.254.169.254 is never a pod's address",
		"224.0.0.1:1":       "never a pod's",
		"0.0.0.0:1":         "never a pod's",
		"[::1]:1":           "never a pod's",
		"[fd00::2]:1":       "the container runtime has no running pod with the address fd00::2",
	} {
		err := nodetunnel.AdmitPodTarget(t.Context(), cfg, netip.MustParseAddrPort(target))
		if (err == nil) != (refused == "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("%s: %v, want %q", target, err, refused)
		}
	}
}

// TestPodDialer_JoinsStreamsToPods dials a server on this machine's own address as a pod in the host's network, through a tunnel.
func TestPodDialer_JoinsStreamsToPods(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(ownAddress(t).String(), "0"))
	kit.Must(t, err)
	at := netip.MustParseAddrPort(l.Addr().String())
	nc := streamstest.Connect(t, streamstest.Hub(t))
	tunnels, err := tunnel.NewServer("gw", nc, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
	kit.Must(t, err)
	dialer, err := tunnel.NewDialer(nc, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
	kit.Must(t, err)
	pods := []store.Entry{{Object: fmt.Appendf(nil, `{"spec":{"nodeName":"gw","hostNetwork":true,"containers":[{"ports":[{"containerPort":%d},{"containerPort":1}]}]},
		"status":{"phase":"Running","podIPs":[{"ip":%q}]}}`, at.Port(), at.Addr())}}
	server, err := nodetunnel.New(nodetunnel.Config{Node: "gw", StoredPods: func() []store.Entry { return pods }, HostAddresses: net.InterfaceAddrs}, tunnels)
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return server.Start(ctx) })
	g.Go(func() error { return dialer.Start(ctx) })
	g.Go(func() error {
		for {
			conn, err := l.Accept()
			if err != nil {
				return nil //nolint:nilerr // the test has ended
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		cancel()
		kit.Must(t, g.Wait())
	})
	<-tunnels.Ready()
	<-dialer.Ready()
	conn, err := dialer.DialAddress(t.Context(), "gw", at)
	kit.Must(t, err)
	_, err = io.WriteString(conn, "hello")
	kit.Must(t, err)
	kit.Must(t, conn.CloseWrite())
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Errorf("echo %q, %v", got, err)
	}
	_ = conn.Close()
	for port, refused := range map[uint16]string{1: "nothing answers at", 22: "declares the TCP port 22"} {
		if _, err := dialer.DialAddress(t.Context(), "gw", netip.AddrPortFrom(at.Addr(), port)); err == nil || !strings.Contains(err.Error(), refused) {
			t.Errorf("port %d: %v, want %q", port, err, refused)
		}
	}
}

// ownAddress returns an address of this machine that others could call.
func ownAddress(t *testing.T) netip.Addr {
	t.Helper()
	all, err := net.InterfaceAddrs()
	kit.Must(t, err)
	for _, a := range all {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr().Is4() && prefix.Addr().IsGlobalUnicast() {
			return prefix.Addr()
		}
	}
	t.Skip("this machine has no address but loopback")
	return netip.Addr{}
}
