package jobs_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) {
	flusher := goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")
	goleak.VerifyTestMain(kit.AwaitGoroutines(m, flusher), flusher)
}
