package hollow

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// watcherBuffer is how many events a slow reader may lag; a pod makes about ten. A reader beyond it is disconnected and lists anew.
const watcherBuffer = 1024

type eventWatcher struct {
	events chan *runtimeapi.ContainerEventResponse // closed when the reader was too slow or the runtime ends; guarded by Runtime.mu
}

// GetContainerEvents streams all further events. Earlier ones are not replayed: list first.
func (s *runtimeService) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	w := &eventWatcher{events: make(chan *runtimeapi.ContainerEventResponse, watcherBuffer)}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}()
	for {
		select {
		case e, ok := <-w.events:
			if !ok {
				return status.Error(codes.Unavailable, "event stream ended")
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// publishEvent sends an event to all watchers. The caller holds mu.
func (r *Runtime) publishEvent(kind runtimeapi.ContainerEventType, sb *sandbox, id string) {
	if len(r.watchers) == 0 {
		return
	}
	event := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano(), PodSandboxStatus: sb.toStatus()}
	for _, c := range r.containers {
		if c.sandbox == sb {
			event.ContainersStatuses = append(event.ContainersStatuses, c.toStatus())
		}
	}
	for w := range r.watchers {
		select {
		case w.events <- event:
		default:
			close(w.events)
			delete(r.watchers, w)
		}
	}
}

func (r *Runtime) closeWatchers() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		close(w.events)
		delete(r.watchers, w)
	}
}
