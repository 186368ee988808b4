package leaf

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A call of nats-server that waits for a lock delays no measurement of the disk, and is not made again beside itself.
func TestHealthCheck_DoesNotWaitForServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		lock := make(chan struct{})
		check := healthCheck{call: func() bool {
			calls.Add(1)
			<-lock
			return false
		}}
		for range 3 {
			before := time.Now()
			if !check.unhealthy() {
				t.Error("a server that does not answer is healthy")
			}
			if took := time.Since(before); took != healthTimeout {
				t.Errorf("waited %v, want %v", took, healthTimeout)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls beside each other", n)
		}
		close(lock)
		synctest.Wait()
		if check.unhealthy() {
			t.Error("the call ended well, and the server is unhealthy")
		}
		if check.unhealthy() || calls.Load() != 2 {
			t.Errorf("%d calls, want a new one after the first has ended", calls.Load())
		}
	})
}
