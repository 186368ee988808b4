package wan_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// newListener returns a listener on a free port of loopback.
func newListener(t *testing.T) net.Listener {
	t.Helper()
	l, err := wan.Listen("", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// startEchoHub echoes what it receives, until the test ends.
func startEchoHub(t *testing.T) net.Listener {
	t.Helper()
	l := newListener(t)
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { _ = c.Close() })
			done := make(chan struct{})
			t.Cleanup(func() { stop(); _ = c.Close(); <-done })
			go func() { defer close(done); _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	return l
}

type forwarderFixture struct {
	t       *testing.T
	address string
	control string
}

// startForwarder runs a forwarder for one gateway called edge-1.
func startForwarder(t *testing.T, namespace, listenAt string, edges map[string]string) forwarderFixture {
	t.Helper()
	r := forwarderFixture{t: t, address: listenAt, control: filepath.Join(t.TempDir(), "c")}
	route := wan.Route{Listen: listenAt, Target: startEchoHub(t).Addr().String()}
	if edges == nil {
		route.Edge = "edge-1"
	}
	f := wan.New(wan.Config{Namespace: namespace, Control: r.control, Routes: []wan.Route{route}, Edges: edges}, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // outlives the test's context until cleanup
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("forwarder: %v", err)
		}
	})
	r.waitUntil(func() bool { _, err := os.Stat(r.control); return err == nil })
	return r
}

// freeAddress returns an address on which no process listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := newListener(t)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (r forwarderFixture) waitUntil(done func() bool) {
	r.t.Helper()
	kit.Eventually(r.t, "the condition", done)
}

func (r forwarderFixture) requestControl(method, path string) wan.Link {
	r.t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", r.control)
	}}
	request, err := http.NewRequestWithContext(r.t.Context(), method, "http://wan"+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %s", path, response.Status)
	}
	var links map[string]wan.Link
	if method == http.MethodGet {
		if err := json.NewDecoder(response.Body).Decode(&links); err != nil {
			r.t.Fatal(err)
		}
	}
	return links["edge-1"]
}

func (r forwarderFixture) dialLink(namespace string) net.Conn {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	c, err := wan.Dial(ctx, namespace, r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// expectEcho sends a word and expects its echo within limit.
func expectEcho(c net.Conn, word string, limit time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(word)); err != nil {
		return err
	}
	return expectWord(c, word)
}

func expectWord(c net.Conn, word string) error {
	buf := make([]byte, len(word))
	if _, err := io.ReadFull(c, buf); err != nil {
		return err
	}
	if string(buf) != word {
		return errors.New("heard " + string(buf))
	}
	return nil
}

const silenceWindow = 150 * time.Millisecond

func TestForwarder_CutIsSilentUntilHealed(t *testing.T) {
	r := startForwarder(t, "", freeAddress(t), nil)
	old := r.dialLink("")
	if err := expectEcho(old, "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if l := r.requestControl(http.MethodGet, "/links"); l.UpBytes != 5 || l.DownBytes != 5 || l.Connections != 1 {
		t.Errorf("link %+v", l)
	}
	r.requestControl(http.MethodPost, "/links/edge-1/cut")
	if err := expectEcho(old, "lost?", silenceWindow); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an open connection during the cut: %v, want silence", err)
	}
	fresh := r.dialLink("")
	if err := expectEcho(fresh, "anyone", silenceWindow); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a new connection during the cut: %v, want silence", err)
	}
	if l := r.requestControl(http.MethodGet, "/links"); !l.Cut || l.Loud {
		t.Errorf("link %+v", l)
	}
	r.requestControl(http.MethodPost, "/links/edge-1/heal")
	for c, word := range map[net.Conn]string{old: "lost?", fresh: "anyone"} {
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := expectWord(c, word); err != nil {
			t.Errorf("after the heal: %v", err)
		}
	}
}

func TestForwarder_LoudCutResetsConnections(t *testing.T) {
	r := startForwarder(t, "", freeAddress(t), nil)
	c := r.dialLink("")
	if err := expectEcho(c, "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	r.requestControl(http.MethodPost, "/links/edge-1/cut?loud=1")
	if err := expectEcho(c, "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("open connection: %v, want it broken", err)
	}
	if err := expectEcho(r.dialLink(""), "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("new connection: %v, want it broken", err)
	}
	r.requestControl(http.MethodPost, "/links/edge-1/heal")
	if err := expectEcho(r.dialLink(""), "back", 5*time.Second); err != nil {
		t.Errorf("after the heal: %v", err)
	}
}

func TestForwarder_CutDelaysEndOfStream(t *testing.T) {
	r := startForwarder(t, "", freeAddress(t), nil)
	c := r.dialLink("")
	if err := expectEcho(c, "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	r.requestControl(http.MethodPost, "/links/edge-1/cut")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if l := r.requestControl(http.MethodGet, "/links"); l.Connections != 1 {
		t.Errorf("the hub learnt of the end during the cut: %+v", l)
	}
	r.requestControl(http.MethodPost, "/links/edge-1/heal")
	r.waitUntil(func() bool { return r.requestControl(http.MethodGet, "/links").Connections == 0 })
}

func TestForwarder_UnknownSourceIsRefused(t *testing.T) {
	r := startForwarder(t, "", freeAddress(t), map[string]string{"192.0.2.1": "edge-1"})
	c := r.dialLink("")
	if err := expectEcho(c, "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want the connection closed", err)
	}
}
