package wan_test

import (
	"errors"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

func TestShapedLinkIsSlow(t *testing.T) {
	r := start(t, "", free(t), nil)
	c := r.dial("")
	took := func(word string) time.Duration {
		t.Helper()
		began := time.Now()
		if err := echo(c, word, 30*time.Second); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	const delay = 100 * time.Millisecond
	r.order(http.MethodPost, wan.ShapeOrder("edge-1", wan.Shape{Delay: delay}))
	if d := took("far away"); d < 2*delay {
		t.Errorf("a round trip took %s with %s each way", d, delay)
	}
	r.order(http.MethodPost, wan.ShapeOrder("edge-1", wan.Shape{Rate: 4096}))
	if d := took(string(make([]byte, 2048))); d < time.Second { // half a second each way
		t.Errorf("2 KiB there and back at 4 KiB/s took %s", d)
	}
	r.order(http.MethodPost, wan.ShapeOrder("edge-1", wan.Shape{Loss: 50}))
	stalled := false
	for range 20 { // at 50 % a stall is as good as certain: 2 in a million say none
		if stalled = took("x") >= 200*time.Millisecond; stalled {
			break
		}
	}
	if !stalled {
		t.Error("nothing stalls with half of all packets lost")
	}
	r.order(http.MethodPost, wan.ShapeOrder("edge-1", wan.Shape{}))
	if l := r.order(http.MethodGet, "/links"); l.Shape != (wan.Shape{}) || l.Cut {
		t.Errorf("link %+v", l)
	}
	took("as before")
}

func TestOneDirectionAlone(t *testing.T) {
	for _, only := range []string{"up", "down"} {
		r := start(t, "", free(t), nil)
		c := r.dial("")
		if err := echo(c, "hello", 5*time.Second); err != nil {
			t.Fatal(err)
		}
		before := r.order(http.MethodGet, "/links")
		r.order(http.MethodPost, "/links/edge-1/cut?only="+only)
		if err := echo(c, "half", silence); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v, want silence", only, err)
		}
		if only == "down" {
			r.until(func() bool { return r.order(http.MethodGet, "/links").UpBytes > before.UpBytes })
		}
		l := r.order(http.MethodGet, "/links")
		if arrived := l.UpBytes > before.UpBytes; !l.Cut || arrived != (only == "down") || l.DownBytes != before.DownBytes {
			t.Errorf("%s cut: %+v, before %+v", only, l, before)
		}
		r.order(http.MethodPost, "/links/edge-1/heal")
		if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := hear(c, "half"); err != nil {
			t.Errorf("%s: after the heal: %v", only, err)
		}
	}
}

func TestResetBreaksWhatIsOpenOnly(t *testing.T) {
	r := start(t, "", free(t), nil)
	c := r.dial("")
	if err := echo(c, "hello", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	r.order(http.MethodPost, "/links/edge-1/reset")
	if err := echo(c, "x", 5*time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("open connection: %v, want it broken", err)
	}
	if err := echo(r.dial(""), "back", 5*time.Second); err != nil {
		t.Errorf("new connection: %v", err)
	}
}
