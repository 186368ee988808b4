package hubconf_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// A client that opens a connection to the WebSocket listener and stops, at whatever step, is disconnected, and a gateway is admitted
// meanwhile.
func TestHub_HalfOpenWebSocketsAreClosed(t *testing.T) {
	w := startTestHub(t)
	const upgrade = "GET /leafnode HTTP/1.1\r\nHost: hub\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
	ways := []func(conn net.Conn) (net.Conn, error){
		func(conn net.Conn) (net.Conn, error) { return conn, nil },
		func(conn net.Conn) (net.Conn, error) {
			_, err := conn.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}) // the start of a ClientHello
			return conn, err
		},
	}
	for _, said := range []string{"", upgrade, upgrade + "\r\n", upgrade + "\r\n\x82\xfe\x10\x00"} {
		ways = append(ways, func(conn net.Conn) (net.Conn, error) {
			inner := tls.Client(conn, w.hub.TLSConfig())
			if err := inner.HandshakeContext(t.Context()); err != nil {
				return conn, err
			}
			_, err := io.WriteString(inner, said)
			return inner, err
		})
	}
	var open []net.Conn
	for i := range 20 * len(ways) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", w.hub.WebsocketAddr(2))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if conn, err = ways[i%len(ways)](conn); err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	w.connectLeaf("wss", w.hub.WebsocketAddr(2), thief, w.thiefKey)
	began := time.Now()
	for i, conn := range open {
		_ = conn.SetReadDeadline(began.Add(waitTimeout))
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("connection %d is still open", i)
		}
	}
	t.Logf("the last one was closed after %s", time.Since(began).Round(time.Second))
}
