package relaytest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// startEcho serves a listener that echoes bytes, and returns its address.
func startEcho(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.Must(t, err)
	relaytest.Serve(t, l, func(_ context.Context, conn net.Conn) { _, _ = io.Copy(conn, conn) })
	return l.Addr().String()
}

func dialRelay(t *testing.T, r *relaytest.Relay) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.Addr())
	kit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// echo sends bytes and waits for them; it returns how long that took.
func echo(conn net.Conn, size int) (time.Duration, error) {
	begun := time.Now()
	if _, err := conn.Write(make([]byte, size)); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(conn, make([]byte, size))
	return time.Since(begun), err
}

func TestRelay_RateAndDelay(t *testing.T) {
	t.Parallel()
	target := startEcho(t)
	for name, tt := range map[string]struct {
		cfg  relaytest.Config
		min  time.Duration
		size int
	}{
		"rate":  {relaytest.Config{Rate: 100 << 10}, 400 * time.Millisecond, 50 << 10},
		"delay": {relaytest.Config{Delay: 100 * time.Millisecond}, 200 * time.Millisecond, 1},
	} {
		r := relaytest.Start(t, target, tt.cfg)
		took, err := echo(dialRelay(t, r), tt.size)
		if err != nil || took < tt.min {
			t.Errorf("%s: echo after %v, want at least %v: %v", name, took, tt.min, err)
		}
		if up, down := r.Bytes(relaytest.ToTarget), r.Bytes(relaytest.FromTarget); up != int64(tt.size) || down != up {
			t.Errorf("%s: counted %d bytes up and %d down", name, up, down)
		}
	}
}

func TestRelay_CutAndHeal(t *testing.T) {
	r := relaytest.Start(t, startEcho(t), relaytest.Config{})
	conn := dialRelay(t, r)
	if _, err := echo(conn, 1); err != nil {
		t.Fatal(err)
	}
	r.Cut()
	if _, err := echo(conn, 1); err == nil {
		t.Error("a cut connection relays")
	}
	if again, err := new(net.Dialer).DialContext(t.Context(), "tcp", r.Addr()); err == nil { // the reset may come during the dial
		if _, err := echo(again, 1); err == nil {
			t.Error("a new connection through a cut relay works")
		}
		_ = again.Close()
	}
	r.Heal()
	if _, err := echo(dialRelay(t, r), 1); err != nil {
		t.Error(err)
	}
}

// A connection that lost bytes in one direction stays open and silent, also after Heal; a new one works.
func TestRelay_SilenceLosesTheConnection(t *testing.T) {
	r := relaytest.Start(t, startEcho(t), relaytest.Config{})
	conn := dialRelay(t, r)
	if _, err := echo(conn, 1); err != nil {
		t.Fatal(err)
	}
	r.Silence(relaytest.FromTarget)
	for range 2 {
		_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
		if _, err := echo(conn, 1); !isTimeout(err) {
			t.Errorf("a silent connection: %v", err)
		}
		r.Heal()
	}
	if _, err := echo(dialRelay(t, r), 1); err != nil {
		t.Error(err)
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
