package hollow

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// idleInterval is how long the scheduler sleeps when nothing is due; wakeUp ends it early.
const idleInterval = time.Hour

// runScheduler is the clock of all containers: it writes their output and ends them when they are due.
func (r *Runtime) runScheduler(ctx context.Context) error {
	timer := time.NewTimer(idleInterval)
	defer timer.Stop()
	for {
		timer.Reset(r.advanceAll(time.Now()))
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// wakeUp makes runScheduler check again.
func (r *Runtime) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// advanceAll performs all due actions and returns the time until the next one.
func (r *Runtime) advanceAll(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := now.Add(idleInterval)
	for _, c := range r.containers {
		if due := r.advanceContainer(c, now); !due.IsZero() && due.Before(next) {
			next = due
		}
	}
	return max(next.Sub(now), 0)
}

// advanceContainer performs the due actions of one container and returns the time of the next one (zero: never). The caller holds mu.
func (r *Runtime) advanceContainer(c *container, now time.Time) time.Time {
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return time.Time{}
	}
	for c.linesWritten < len(c.behaviour.Output) && !now.Before(c.started.Add(c.behaviour.Output[c.linesWritten].After)) {
		c.writeLog(now, c.behaviour.Output[c.linesWritten].Text)
		c.linesWritten++
	}
	end, code := time.Time{}, int32(0)
	if c.behaviour.Ends {
		end, code = c.started.Add(c.behaviour.EndAfter), c.behaviour.Code
	}
	if !c.stopAt.IsZero() && (end.IsZero() || c.stopAt.Before(end)) {
		end, code = c.stopAt, c.stopCode
	}
	if !end.IsZero() && !now.Before(end) {
		r.exitContainer(c, code)
		return time.Time{}
	}
	if c.linesWritten < len(c.behaviour.Output) {
		if line := c.started.Add(c.behaviour.Output[c.linesWritten].After); end.IsZero() || line.Before(end) {
			return line
		}
	}
	return end
}

// exitContainer ends a container. The caller holds mu.
func (r *Runtime) exitContainer(c *container, code int32) {
	c.state, c.code, c.finished = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now()
	c.reason = "Error"
	if code == 0 {
		c.reason = "Completed"
	}
	c.closeLog()
	close(c.done)
	r.publishEvent(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.sandbox, c.id)
}
