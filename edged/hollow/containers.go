package hollow

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/edged/hollow/behaviour"
)

// exitStartError is the code containerd reports when a container could not be started.
const exitStartError = 128

// exitKilled is 128 + SIGKILL, which a runtime reports for a container that did not end in its grace period.
const exitKilled = 137

// container is one simulated container. Its fields are guarded by Runtime.mu, except done.
type container struct {
	id           string
	name         string // as reserved
	sandbox      *sandbox
	config       *runtimeapi.ContainerConfig
	image        *image
	created      time.Time
	started      time.Time
	finished     time.Time
	state        runtimeapi.ContainerState
	code         int32
	reason       string
	message      string
	behaviour    behaviour.Behaviour
	linesWritten int           // lines of plan.Output that are in the log
	stopAt       time.Time     // when it exits after a stop request; zero: no request
	stopCode     int32         // exit code after a stop request
	done         chan struct{} // closed when it has exited
	log          *os.File
}

// CreateContainer creates a container; its image must exist.
func (s *runtimeService) CreateContainer(_ context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "container config must have metadata")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	img := s.findImage(config.GetImage().GetImage())
	if img == nil {
		return nil, status.Errorf(codes.NotFound, "failed to resolve image %q: not found", config.GetImage().GetImage())
	}
	m := config.GetMetadata()
	c := &container{
		id: newID(), name: fmt.Sprintf("%s_%s_%d", m.GetName(), sb.name, m.GetAttempt()), sandbox: sb, config: config, image: img,
		created: time.Now(), state: runtimeapi.ContainerState_CONTAINER_CREATED, done: make(chan struct{}),
	}
	if holder, taken := s.names[c.name]; taken {
		return nil, status.Errorf(codes.Unknown, "failed to reserve container name %q: name %q is reserved for %q", c.name, c.name, holder)
	}
	s.names[c.name] = c.id
	s.containers[c.id] = c
	s.publishEvent(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, sb, c.id)
	return &runtimeapi.CreateContainerResponse{ContainerId: c.id}, nil
}

// StartContainer starts a created container.
func (s *runtimeService) StartContainer(_ context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.Unknown, "failed to set starting state: container is in %s state", c.state)
	}
	if !c.sandbox.ready {
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", c.sandbox.id)
	}
	env := map[string]string{}
	for _, kv := range c.config.GetEnvs() {
		env[kv.GetKey()] = string(kv.GetValue())
	}
	plan, err := behaviour.Parse(slices.Concat(c.config.GetCommand(), c.config.GetArgs()), env, c.sandbox.config.GetAnnotations())
	if err == nil && plan.StartError != "" {
		err = fmt.Errorf("%s", plan.StartError)
	}
	if err == nil {
		err = c.openLog()
	}
	c.started = time.Now()
	if err != nil {
		s.exitContainer(c, exitStartError)
		c.reason, c.message = "StartError", err.Error()
		return nil, status.Errorf(codes.Unknown, "failed to start containerd task %q: %v", c.config.GetMetadata().GetName(), err)
	}
	c.behaviour, c.state = plan, runtimeapi.ContainerState_CONTAINER_RUNNING
	s.publishEvent(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, c.sandbox, c.id)
	s.advanceContainer(c, c.started)
	s.wakeUp()
	return &runtimeapi.StartContainerResponse{}, nil
}

func (r *Runtime) findContainer(id string) (*container, error) {
	return findByPrefix(r.containers, id, "container")
}

// StopContainer waits until the container has ended. An unknown or ended container is not an error.
func (s *runtimeService) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	s.mu.Lock()
	c, err := s.findContainer(req.GetContainerId())
	if err != nil || c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		s.mu.Unlock()
		return &runtimeapi.StopContainerResponse{}, nil //nolint:nilerr // CRI: stopping what is gone succeeds
	}
	wait, code := c.behaviour.StopAfter, int32(0)
	if grace := time.Duration(req.GetTimeout()) * time.Second; grace <= 0 || wait > grace {
		wait, code = max(grace, 0), exitKilled
	}
	if at := time.Now().Add(wait); c.stopAt.IsZero() || at.Before(c.stopAt) {
		c.stopAt, c.stopCode = at, code
	}
	s.advanceContainer(c, time.Now())
	done := c.done
	s.mu.Unlock()
	s.wakeUp()
	select {
	case <-done:
		return &runtimeapi.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// RemoveContainer removes a container, and kills it if it runs. An unknown container is not an error.
func (s *runtimeService) RemoveContainer(_ context.Context, req *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, err := s.findContainer(req.GetContainerId()); err == nil {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			s.exitContainer(c, exitKilled)
		}
		s.forgetContainer(c)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// forgetContainer removes a container that does not run. The caller holds mu.
func (r *Runtime) forgetContainer(c *container) {
	c.closeLog()
	delete(r.containers, c.id)
	delete(r.names, c.name)
	r.publishEvent(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, c.sandbox, c.id)
}

// ListContainers lists containers, newest first.
func (s *runtimeService) ListContainers(_ context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	f := req.GetFilter()
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []*runtimeapi.Container{}
	for _, c := range s.containers {
		if !strings.HasPrefix(c.id, f.GetId()) || !strings.HasPrefix(c.sandbox.id, f.GetPodSandboxId()) || !matchesLabels(c.config.GetLabels(), f.GetLabelSelector()) {
			continue
		}
		if f.GetState() != nil && f.GetState().GetState() != c.state {
			continue
		}
		items = append(items, &runtimeapi.Container{
			Id: c.id, PodSandboxId: c.sandbox.id, Metadata: c.config.GetMetadata(), Image: c.config.GetImage(), ImageRef: c.image.id, ImageId: c.image.id,
			State: c.state, CreatedAt: c.created.UnixNano(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		})
	}
	slices.SortFunc(items, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	return &runtimeapi.ListContainersResponse{Containers: items}, nil
}

// ContainerStatus returns the state of one container.
func (s *runtimeService) ContainerStatus(_ context.Context, req *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatusResponse{Status: c.toStatus()}, nil
}

func (c *container) toStatus() *runtimeapi.ContainerStatus {
	nano := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixNano()
	}
	return &runtimeapi.ContainerStatus{
		Id: c.id, Metadata: c.config.GetMetadata(), State: c.state,
		CreatedAt: nano(c.created), StartedAt: nano(c.started), FinishedAt: nano(c.finished), ExitCode: c.code,
		Image: &runtimeapi.ImageSpec{Image: c.image.reference}, ImageRef: c.image.repoDigest(), ImageId: c.image.id,
		Reason: c.reason, Message: c.message, Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		Mounts: c.config.GetMounts(), LogPath: c.logPath(),
		Resources: &runtimeapi.ContainerResources{Linux: c.config.GetLinux().GetResources()},
	}
}

// UpdateContainerResources records the new limits.
func (s *runtimeService) UpdateContainerResources(_ context.Context, req *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.config.GetLinux() != nil && req.GetLinux() != nil {
		c.config.Linux.Resources = req.GetLinux()
	}
	if c.config.Annotations == nil {
		c.config.Annotations = map[string]string{}
	}
	maps.Copy(c.config.Annotations, req.GetAnnotations())
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

func (c *container) logPath() string {
	if c.config.GetLogPath() == "" || c.sandbox.config.GetLogDirectory() == "" {
		return ""
	}
	return filepath.Join(c.sandbox.config.GetLogDirectory(), c.config.GetLogPath())
}

func (c *container) openLog() error {
	name := c.logPath()
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	c.log = f
	return nil
}

func (c *container) closeLog() {
	if c.log != nil {
		_ = c.log.Close()
		c.log = nil
	}
}

// writeLog appends one line in the CRI log format.
func (c *container) writeLog(at time.Time, text string) {
	if c.log != nil {
		_, _ = fmt.Fprintf(c.log, "%s stdout F %s\n", at.UTC().Format(time.RFC3339Nano), text)
	}
}

// ReopenContainerLog reopens the log file after the kubelet has moved it.
func (s *runtimeService) ReopenContainerLog(_ context.Context, req *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Error(codes.Unknown, "container is not running")
	}
	c.closeLog()
	if err := c.openLog(); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}
