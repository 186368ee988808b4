package gateway_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/frond-edge/frond/cloud/gateway"
)

// callFrom connects to a port from an address of this machine and begins a handshake.
func callFrom(t *testing.T, from string, port uint16) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(int(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(conn, "\x16\x03") // it may be closed already
	return conn
}

// TestDirect_SilentCallersAreLimited: incomplete handshakes take a limited share of a node's streams, and other callers
// are still served.
func TestDirect_SilentCallersAreLimited(t *testing.T) {
	w, g, port, caller := newDirectFixture(t, nil)
	dialled := make(chan struct{}, 2*gateway.MaxPerSource) // more than dial below
	w.duringDial = func() { dialled <- struct{}{} }
	g.SetPorts(map[uint16]string{port: "edge-1"})
	waitPort(t, port, true)
	var silent []net.Conn
	for range gateway.MaxPerSource {
		silent = append(silent, callFrom(t, "127.0.0.2", port))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wait := func() {
		select {
		case <-dialled:
		case <-ctx.Done():
			t.Fatal("a silent caller does not get to the node")
		}
	}
	for range silent {
		wait()
	}
	if data, err := io.ReadAll(callFrom(t, "127.0.0.2", port)); len(data) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one more of that address: %q, %v", data, err)
	}
	if len(dialled) > 0 {
		t.Error("one more of that address got a stream")
	}
	if code, body, err := requestPort(t, port, caller); err != nil || code != http.StatusOK {
		t.Errorf("another address: %d %q %v", code, body, err)
	}
	wait()
	// A closed connection frees its place.
	_ = silent[0].Close()
	for len(dialled) == 0 && ctx.Err() == nil {
		conn := callFrom(t, "127.0.0.2", port)
		_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = conn.Read(make([]byte, 1)) // closed, or a stream that is silent
	}
	wait()
}

func TestConnLimiter_BoundsSourceAndPort(t *testing.T) {
	enter := gateway.AcquireConn()
	from := netip.MustParseAddr("10.0.0.1")
	var leave []func()
	for range gateway.MaxPerPort / gateway.MaxPerSource {
		for range gateway.MaxPerSource {
			out, ok := enter(from, 1)
			if !ok {
				t.Fatalf("refused after %d", len(leave))
			}
			leave = append(leave, out)
		}
		if _, ok := enter(from, 1); ok {
			t.Errorf("%s has more than its share", from)
		}
		if out, ok := enter(from, 2); !ok {
			t.Errorf("%s is refused at another port", from)
		} else {
			out()
		}
		from = from.Next()
	}
	if _, ok := enter(from, 1); ok {
		t.Error("the port takes any number")
	}
	leave[0]()
	if _, ok := enter(from, 1); !ok {
		t.Error("there is no room after one has left")
	}
}
