package hollow

import (
	"context"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault is a failure that a test injects.
type Fault struct {
	Err   error         // returned instead of doing the call; nil: the call is done after Delay
	Delay time.Duration // before the answer
	Times int           // how many calls it affects; 0: all until ClearFaults
}

// InjectFault makes calls of one name ("RunPodSandbox", "PullImage") fail. Several faults of a call are used up in order.
func (r *Runtime) InjectFault(call string, fault Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults[call] = append(r.faults[call], fault)
}

// ClearFaults removes all faults of a call.
func (r *Runtime) ClearFaults(call string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.faults, call)
}

func (r *Runtime) nextFault(call string) (Fault, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue := r.faults[call]
	if len(queue) == 0 {
		return Fault{}, false
	}
	fault := queue[0]
	if fault.Times == 1 {
		r.faults[call] = queue[1:]
	} else if fault.Times > 1 {
		queue[0].Times--
	}
	return fault, true
}

func (r *Runtime) interceptCall(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	call := path.Base(info.FullMethod)
	delay := time.Duration(0)
	if isMutating(call) {
		delay = r.cfg.Latency
	}
	fault, hit := r.nextFault(call)
	if hit {
		delay += fault.Delay
	}
	if err := sleepContext(ctx, delay); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if hit && fault.Err != nil {
		if _, ok := status.FromError(fault.Err); ok {
			return nil, fault.Err
		}
		return nil, status.Error(codes.Unknown, fault.Err.Error())
	}
	return next(ctx, req)
}

func isMutating(call string) bool {
	for _, verb := range []string{"Run", "Create", "Start", "Stop", "Remove", "Pull"} {
		if strings.HasPrefix(call, verb) {
			return true
		}
	}
	return false
}

func sleepContext(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
