package tunnel_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// A node refuses streams to addresses before ListenAddresses and after its Listener is closed, and accepts them in between.
func TestServer_AddressesAreOfferedByListenAddressesAlone(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	refused := func() {
		t.Helper()
		// The port has a Listener: it is the node's own, not the address's.
		_, err := e.dialer.DialAddress(t.Context(), node, netip.MustParseAddrPort("10.1.2.3:10250"))
		if r, ok := errors.AsType[*tunnel.RefusedError](err); !ok || r.Code != protocol.CodePort || !strings.Contains(err.Error(), "refused 10.1.2.3:10250: the node offers no addresses") {
			t.Errorf("dial: %v", err)
		}
	}
	refused()
	l, err := e.server.ListenAddresses()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.server.ListenAddresses(); err == nil {
		t.Error("addresses have two listeners")
	}
	targets := make(chan netip.AddrPort, 4) // as many as are dialled
	go func() {
		for {
			in, err := l.Next()
			if err != nil {
				return // closed
			}
			targets <- in.Target()
			if in.Port() == 1 {
				in.Refuse("not that one")
				continue
			}
			if conn, err := in.Accept(); err == nil {
				_, _ = conn.Write([]byte(in.Label()))
				_ = conn.Close()
			}
		}
	}()
	for dialled, seen := range map[string]string{"10.1.2.3:80": "10.1.2.3:80", "[::ffff:10.1.2.3]:80": "10.1.2.3:80", "[fd00::7%eth0]:65535": "[fd00::7]:65535"} {
		conn, err := e.dialer.DialAddress(tunnel.WithLabel(t.Context(), "jane"), node, netip.MustParseAddrPort(dialled))
		if err != nil {
			t.Fatal(err)
		}
		label := make([]byte, 4)
		if n, err := conn.Read(label); err != nil || string(label[:n]) != "jane" {
			t.Errorf("read %q, %v", label[:n], err)
		}
		_ = conn.Close()
		if got := <-targets; got != netip.MustParseAddrPort(seen) {
			t.Errorf("%s arrived as %s", dialled, got)
		}
	}
	_, err = e.dialer.DialAddress(t.Context(), node, netip.MustParseAddrPort("10.1.2.3:1"))
	if r, ok := errors.AsType[*tunnel.RefusedError](err); !ok || r.Code != protocol.CodeDeclined || !strings.Contains(err.Error(), "refused 10.1.2.3:1: not that one") {
		t.Errorf("declined: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	refused()
	cloud, atNode := e.dialStream(t) // the ports are still offered
	requireEcho(t, cloud, atNode)
}
