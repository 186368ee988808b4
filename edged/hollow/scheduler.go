package hollow

import (
	"context"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// idle is how long the clock sleeps when nothing is due; wakeUp ends it early.
const idle = time.Hour

// run lets time pass for all containers: it writes their output and ends them when they are due.
func (r *Runtime) run(ctx context.Context) error {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		timer.Reset(r.tick(time.Now()))
		select {
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// wakeUp makes run look again.
func (r *Runtime) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// tick does all that is due and tells how long nothing else is.
func (r *Runtime) tick(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := now.Add(idle)
	for _, c := range r.containers {
		if due := r.step(c, now); !due.IsZero() && due.Before(next) {
			next = due
		}
	}
	return max(next.Sub(now), 0)
}

// step does what is due for one container and tells when to come again (zero: never). mu is held.
func (r *Runtime) step(c *container, now time.Time) time.Time {
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return time.Time{}
	}
	for c.written < len(c.plan.Output) && !now.Before(c.started.Add(c.plan.Output[c.written].After)) {
		c.write(now, c.plan.Output[c.written].Text)
		c.written++
	}
	end, code := time.Time{}, int32(0)
	if c.plan.Ends {
		end, code = c.started.Add(c.plan.EndAfter), c.plan.Code
	}
	if !c.stopAt.IsZero() && (end.IsZero() || c.stopAt.Before(end)) {
		end, code = c.stopAt, c.stopCode
	}
	if !end.IsZero() && !now.Before(end) {
		r.exit(c, code)
		return time.Time{}
	}
	if c.written < len(c.plan.Output) {
		if line := c.started.Add(c.plan.Output[c.written].After); end.IsZero() || line.Before(end) {
			return line
		}
	}
	return end
}

// exit ends a container. mu is held.
func (r *Runtime) exit(c *container, code int32) {
	c.state, c.code, c.finished = runtimeapi.ContainerState_CONTAINER_EXITED, code, time.Now()
	c.reason = "Error"
	if code == 0 {
		c.reason = "Completed"
	}
	c.closeLog()
	close(c.done)
	r.publish(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, c.sandbox, c.id)
}
