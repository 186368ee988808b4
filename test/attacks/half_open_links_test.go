package attacks_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// TestHalfOpenLinks_OthersConnect opens many connections to the leaf port that stall: silent, during the TLS handshake, without TLS, after
// the handshake, and during the login. Meanwhile other gateways connect, and the hub closes all stalled connections.
func TestHalfOpenLinks_OthersConnect(t *testing.T) {
	const each, kinds = 60, 5
	l := stealCredentials(t, stolen)
	var open []net.Conn
	for i := range kinds * each {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.addresses[i%len(l.addresses)])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		switch i % kinds {
		case 1: // the beginning of a ClientHello
			_, err = conn.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3})
		case 2: // half a CONNECT, in the clear
			_, err = conn.Write([]byte("CONNECT {"))
		case 3, 4:
			within := tls.Client(conn, l.secret)
			if err = within.HandshakeContext(t.Context()); err == nil && i%kinds == 4 {
				_, err = within.Write([]byte("CONNECT {"))
			}
			conn = within
		}
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	changeVictim(t)
	checkVictimServed(t)
	deadline := time.Now().Add(waitTimeout)
	for i, conn := range open {
		_ = conn.SetReadDeadline(deadline)
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("connection %d is still open", i)
		}
	}
}
