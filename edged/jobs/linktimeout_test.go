package jobs

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestWithLinkTimeout_RunsOnlyWithALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link := streamstest.NewSwitchableLink()
		ctx, cancel := withLinkTimeout(t.Context(), link, time.Minute)
		defer cancel()
		time.Sleep(30 * time.Second) //nolint:forbidigo // of synctest's clock
		link.SetUp(false)
		time.Sleep(time.Hour) //nolint:forbidigo // of synctest's clock
		link.SetUp(true)
		time.Sleep(29 * time.Second) //nolint:forbidigo // of synctest's clock
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatalf("ended too early: %v", context.Cause(ctx))
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // of synctest's clock
		synctest.Wait()
		if cause := context.Cause(ctx); cause == nil || !strings.Contains(cause.Error(), "timeoutSeconds") {
			t.Errorf("cause %v", cause)
		}
	})
}

func TestLinuxHost_Usage(t *testing.T) {
	host := LinuxHost{ImageFolder: func(context.Context) (string, error) { return t.TempDir(), nil }}
	for _, item := range []operations.CheckItem{operations.CheckCPU, operations.CheckMemory, operations.CheckDisk} {
		if used, err := host.Usage(t.Context(), item); err != nil || used < 0 || used > 100 {
			t.Errorf("%s: %v %v", item, used, err)
		}
	}
	if _, err := host.Usage(t.Context(), "shell"); err == nil {
		t.Error("an unknown item is no error")
	}
	if _, err := parseFields(strings.NewReader(strings.Repeat("x", 2<<20))); err == nil {
		t.Error("a line without an end is no error")
	}
}
