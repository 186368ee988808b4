package hollow

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandbox is the sandbox of one pod. Guarded by Runtime.mu.
type sandbox struct {
	id      string
	name    string // as reserved
	config  *runtimeapi.PodSandboxConfig
	handler string
	created time.Time
	ready   bool
	ip      string // "" for host network
}

type runtimeService struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	*Runtime
}

// newID returns a random id of the length of a containerd id.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand since Go 1.24)
	return hex.EncodeToString(b[:])
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// RunPodSandbox creates and starts a sandbox.
func (s *runtimeService) RunPodSandbox(_ context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := req.GetConfig()
	if config.GetMetadata() == nil {
		return nil, status.Error(codes.InvalidArgument, "sandbox config must have metadata")
	}
	if dir := config.GetLogDirectory(); dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, status.Errorf(codes.Unknown, "make log folder: %v", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sb := &sandbox{id: newID(), name: sandboxName(config.GetMetadata()), config: config, handler: req.GetRuntimeHandler(), created: time.Now(), ready: true}
	if holder, taken := s.names[sb.name]; taken {
		return nil, status.Errorf(codes.Unknown, "failed to reserve sandbox name %q: name %q is reserved for %q", sb.name, sb.name, holder)
	}
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		ip, err := s.nextIP()
		if err != nil {
			return nil, status.Error(codes.Unknown, err.Error())
		}
		sb.ip = ip
	}
	s.names[sb.name] = sb.id
	s.sandboxes[sb.id] = sb
	s.publishEvent(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, sb, sb.id)
	s.publishEvent(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, sb, sb.id)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: sb.id}, nil
}

// nextIP returns the next address that no live sandbox has. The caller holds mu.
func (r *Runtime) nextIP() (string, error) {
	used := make(map[string]bool, len(r.sandboxes))
	for _, sb := range r.sandboxes {
		used[sb.ip] = sb.ready
	}
	for range len(r.sandboxes) + 2 {
		next := r.lastIP.Next()
		if !r.podPrefix.Contains(next) {
			next = r.podPrefix.Addr().Next()
		}
		r.lastIP = next
		if !used[next.String()] {
			return next.String(), nil
		}
	}
	return "", fmt.Errorf("no address left in %s", r.podPrefix)
}

// findSandbox accepts the id or an unambiguous prefix of it. The caller holds mu.
func (r *Runtime) findSandbox(id string) (*sandbox, error) {
	return findByPrefix(r.sandboxes, id, "sandbox")
}

func findByPrefix[T any](all map[string]*T, id, what string) (*T, error) {
	if found, ok := all[id]; ok {
		return found, nil
	}
	var found *T
	for full, one := range all {
		if id != "" && strings.HasPrefix(full, id) {
			if found != nil {
				return nil, status.Errorf(codes.NotFound, "%s id prefix %q is ambiguous", what, id)
			}
			found = one
		}
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "an error occurred when try to find %s %q: not found", what, id)
	}
	return found, nil
}

// StopPodSandbox kills the containers of a sandbox and ends it. An unknown or stopped sandbox is not an error.
func (s *runtimeService) StopPodSandbox(_ context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sb, err := s.findSandbox(req.GetPodSandboxId()); err == nil {
		s.stopSandbox(sb)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stopSandbox stops a sandbox. The caller holds mu.
func (r *Runtime) stopSandbox(sb *sandbox) {
	for _, c := range r.containers {
		if c.sandbox == sb && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			r.exitContainer(c, exitKilled)
		}
	}
	if sb.ready {
		sb.ready = false
		r.publishEvent(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, sb, sb.id)
	}
}

// RemovePodSandbox removes a sandbox and its containers. An unknown sandbox is not an error.
func (s *runtimeService) RemovePodSandbox(_ context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil // CRI: removing a missing sandbox succeeds
	}
	s.stopSandbox(sb)
	for _, c := range s.containers {
		if c.sandbox == sb {
			s.forgetContainer(c)
		}
	}
	delete(s.sandboxes, sb.id)
	delete(s.names, sb.name)
	s.publishEvent(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, sb, sb.id)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// PodSandboxStatus returns the state of one sandbox.
func (s *runtimeService) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: sb.toStatus()}, nil
}

func (sb *sandbox) criState() runtimeapi.PodSandboxState {
	if sb.ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (sb *sandbox) toStatus() *runtimeapi.PodSandboxStatus {
	return &runtimeapi.PodSandboxStatus{
		Id: sb.id, Metadata: sb.config.GetMetadata(), State: sb.criState(), CreatedAt: sb.created.UnixNano(),
		Network:        &runtimeapi.PodSandboxNetworkStatus{Ip: sb.ip},
		Linux:          &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: sb.config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
		Labels:         sb.config.GetLabels(),
		Annotations:    sb.config.GetAnnotations(),
		RuntimeHandler: sb.handler,
	}
}

// ListPodSandbox lists sandboxes, newest first.
func (s *runtimeService) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f := req.GetFilter()
	s.mu.Lock()
	defer s.mu.Unlock()
	items := []*runtimeapi.PodSandbox{}
	for _, sb := range s.sandboxes {
		if !strings.HasPrefix(sb.id, f.GetId()) || !matchesLabels(sb.config.GetLabels(), f.GetLabelSelector()) {
			continue
		}
		if f.GetState() != nil && f.GetState().GetState() != sb.criState() {
			continue
		}
		items = append(items, &runtimeapi.PodSandbox{
			Id: sb.id, Metadata: sb.config.GetMetadata(), State: sb.criState(), CreatedAt: sb.created.UnixNano(),
			Labels: sb.config.GetLabels(), Annotations: sb.config.GetAnnotations(), RuntimeHandler: sb.handler,
		})
	}
	slices.SortFunc(items, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	return &runtimeapi.ListPodSandboxResponse{Items: items}, nil
}

func matchesLabels(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}
