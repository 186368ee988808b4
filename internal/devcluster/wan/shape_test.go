package wan_test

import (
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

func TestForwarder_ShapedLinkIsSlow(t *testing.T) {
	r := startForwarder(t, "", freeAddress(t), nil)
	c := r.dialLink("")
	took := func(word string) time.Duration {
		t.Helper()
		began := time.Now()
		if err := expectEcho(c, word, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	const delay = 100 * time.Millisecond
	r.requestControl(http.MethodPost, wan.ShapePath("edge-1", wan.Shape{Delay: delay}))
	if d := took("far away"); d < 2*delay {
		t.Errorf("a round trip took %s with %s each way", d, delay)
	}
	r.requestControl(http.MethodPost, wan.ShapePath("edge-1", wan.Shape{Rate: 4096}))
	if d := took(string(make([]byte, 2048))); d < time.Second { // half a second each way
		t.Errorf("2 KiB there and back at 4 KiB/s took %s", d)
	}
	r.requestControl(http.MethodPost, wan.ShapePath("edge-1", wan.Shape{Loss: 50}))
	stalled := false
	for range 20 { // at 50 % a stall is all but certain: 2 runs in a million have none
		if stalled = took("x") >= 200*time.Millisecond; stalled {
			break
		}
	}
	if !stalled {
		t.Error("nothing stalls with half of all packets lost")
	}
	r.requestControl(http.MethodPost, wan.ShapePath("edge-1", wan.Shape{}))
	if l := r.requestControl(http.MethodGet, "/links"); l.Shape != (wan.Shape{}) || l.Cut {
		t.Errorf("link %+v", l)
	}
	took("as before")
}

func TestForwarder_CutsOneDirection(t *testing.T) {
	for _, only := range []string{"up", "down"} {
		r := startForwarder(t, "", freeAddress(t), nil)
		c := r.dialLink("")
		if err := expectEcho(c, "hello", 5*time.Second); err != nil {
			t.Fatal(err)
		}
		before := r.requestControl(http.MethodGet, "/links")
		r.requestControl(http.MethodPost, "/links/edge-1/cut?only="+only)
		if err := expectEcho(c, "half", silenceWindow); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, want silence", only, err)
		}
		if only == "down" {
			r.waitUntil(func() bool { return r.requestControl(http.MethodGet, "/links").UpBytes > before.UpBytes })
		}
		l := r.requestControl(http.MethodGet, "/links")
		if arrived := l.UpBytes > before.UpBytes; !l.Cut || arrived != (only == "down") || l.DownBytes != before.DownBytes {
			t.Errorf("%s cut: %+v, before %+v", only, l, before)
		}
		r.requestControl(http.MethodPost, "/links/edge-1/heal")
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := expectWord(c, "half"); err != nil {
			t.Errorf("%s: after the heal: %v", only, err)
		}
	}
}

func TestForwarder_ResetBreaksOpenConnectionsOnly(t *testing.T) {
	r := startForwarder(t, "", freeAddress(t), nil)
	c := r.dialLink("")
	if err := expectEcho(c, "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	r.requestControl(http.MethodPost, "/links/edge-1/reset")
	if err := expectEcho(c, "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("open connection: %v, want it broken", err)
	}
	if err := expectEcho(r.dialLink(""), "back", 5*time.Second); err != nil {
		t.Errorf("new connection: %v", err)
	}
}
