package localapi_test

import (
	"runtime"
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/test/kit"
)

// collectingTests runs the tests and then the garbage collector: client-go stops watching a client's certificate when the
// client is collected.
type collectingTests struct{ *testing.M }

func (c collectingTests) Run() int {
	code := c.M.Run()
	runtime.GC()
	runtime.GC() // the first run only finds objects with a cleanup
	return code
}

func TestMain(m *testing.M) {
	ignored := []goleak.Option{
		// klog's and OpenCensus-free helpers of the API machinery start one flusher a process.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// client-go's metadata client leaks the goroutine of a watch that is stopped while an event is in flight.
		goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"),
	}
	goleak.VerifyTestMain(kit.AwaitGoroutines(collectingTests{m}, ignored...), ignored...)
}
