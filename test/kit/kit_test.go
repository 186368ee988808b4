package kit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/test/kit"
)

// failureRecorder is a testing.TB whose failures do not end the real test.
type failureRecorder struct {
	testing.TB
	message string
}

func (r *failureRecorder) Helper() {}

func (r *failureRecorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func captureFailure(t *testing.T, limit time.Duration, missing func(ctx context.Context) error) string {
	t.Helper()
	r, done := &failureRecorder{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		kit.Until(r, "it", limit, time.Millisecond, missing)
	}()
	<-done
	return r.message
}

func TestUntil(t *testing.T) {
	looks := 0
	third := func(context.Context) error {
		if looks++; looks < 3 {
			return errors.New("not yet")
		}
		return nil
	}
	if said := captureFailure(t, time.Minute, third); said != "" || looks != 3 {
		t.Errorf("%d looks, %q", looks, said)
	}
	last := captureFailure(t, 50*time.Millisecond, kit.FromText(func(ctx context.Context) string {
		if ctx.Err() != nil {
			return "cut short"
		}
		return "two of three"
	}))
	if !strings.Contains(last, "it: not within 50ms: two of three") {
		t.Errorf("after the limit: %q", last)
	}
	looks = 0
	if said := captureFailure(t, time.Minute, func(context.Context) error {
		looks++
		return fmt.Errorf("about it: %w", kit.Permanent(context.Canceled))
	}); looks != 1 || said != "it: about it: context canceled" {
		t.Errorf("%d looks at what never comes, %q", looks, said)
	}
	if err := kit.FromText(func(context.Context) string { return "" })(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFreePorts_Differ(t *testing.T) {
	ports, err := kit.FreePorts(50)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port < 1024 || port >= 20000 {
			t.Errorf("port %d of %v", port, ports)
		}
		seen[port] = true
	}
}
