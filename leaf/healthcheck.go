package leaf

import "time"

// healthTimeout is how long the watch of the disk waits for the health of the server. An answer takes milliseconds; the reserve must give
// way within seconds on a disk that fills, whatever the server waits for.
const healthTimeout = 3 * time.Second

// healthCheck asks for the health of one server, in a goroutine of its own: after a failed write, a call of nats-server may wait for a
// lock for as long as the write that holds it. One goroutine uses it.
type healthCheck struct {
	// call reports whether the server is unhealthy.
	call func() bool
	// running gives the result of a call that has not returned in time; nil if there is none.
	running chan bool
}

// unhealthy reports whether the server is unhealthy or does not say in time. As long as a call has not returned, it waits for that one
// instead of starting another.
func (h *healthCheck) unhealthy() bool {
	if h.running == nil {
		result := make(chan bool, 1) // the goroutine ends even if nobody waits
		h.running = result
		go func() { result <- h.call() }()
	}
	timeout := time.NewTimer(healthTimeout)
	defer timeout.Stop()
	select {
	case bad := <-h.running:
		h.running = nil
		return bad
	case <-timeout.C:
		return true
	}
}
