package hollow

import (
	"context"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerMemory is the reported memory of each running container.
const containerMemory = 1 << 20

// cpuAtStart is the reported CPU time of a container at its start. Afterwards it uses one CPU second in each cpuShare
// seconds: a thousandth of a core. Callers treat a container without any CPU time as one that is not measured.
const (
	cpuAtStart = time.Millisecond
	cpuShare   = 1000
)

// Version returns the runtime's name; the Node shows it as containerRuntimeVersion.
func (s *runtimeService) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "hollow", RuntimeVersion: "1.0.0", RuntimeApiVersion: "v1"}, nil
}

// Status is always ready; inject a Fault of "Status" for anything else.
func (s *runtimeService) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true},
			{Type: runtimeapi.NetworkReady, Status: true},
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{}}},
	}, nil
}

// RuntimeConfig returns cgroupfs, which has no effect here.
func (s *runtimeService) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig sets the node's pod CIDR: the first one, if there is one for each IP family.
func (s *runtimeService) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	cidr, _, _ := strings.Cut(req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr(), ",")
	if cidr == "" {
		return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
	}
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "pod CIDR: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.podPrefix != prefix.Masked() {
		s.podPrefix = prefix.Masked()
		s.lastIP = s.podPrefix.Addr()
	}
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// ContainerStats returns the resource use of one container.
func (s *runtimeService) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.findContainer(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: s.containerStats(c)}, nil
}

// ListContainerStats returns the resource use of the running containers.
func (s *runtimeService) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	f := req.GetFilter()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range s.containers {
		if c.state == runtimeapi.ContainerState_CONTAINER_RUNNING && (f.GetId() == "" || f.GetId() == c.id) &&
			(f.GetPodSandboxId() == "" || f.GetPodSandboxId() == c.sandbox.id) && matchesLabels(c.config.GetLabels(), f.GetLabelSelector()) {
			out.Stats = append(out.Stats, s.containerStats(c))
		}
	}
	return out, nil
}

func (r *Runtime) containerStats(c *container) *runtimeapi.ContainerStats {
	now := time.Now()
	var used time.Duration
	if !c.started.IsZero() {
		used = cpuAtStart + now.Sub(c.started)/cpuShare
	}
	return &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: c.id, Metadata: c.config.GetMetadata(), Labels: c.config.GetLabels(), Annotations: c.config.GetAnnotations(),
		},
		Cpu:           &runtimeapi.CpuUsage{Timestamp: now.UnixNano(), UsageCoreNanoSeconds: &runtimeapi.UInt64Value{Value: uint64(used)}, UsageNanoCores: &runtimeapi.UInt64Value{Value: uint64(time.Second / cpuShare)}},
		Memory:        &runtimeapi.MemoryUsage{Timestamp: now.UnixNano(), WorkingSetBytes: &runtimeapi.UInt64Value{Value: containerMemory}, UsageBytes: &runtimeapi.UInt64Value{Value: containerMemory}, RssBytes: &runtimeapi.UInt64Value{Value: containerMemory}},
		WritableLayer: r.filesystemUsage(0),
	}
}

// PodSandboxStats returns the resource use of one pod.
func (s *runtimeService) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sb, err := s.findSandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: s.sandboxStats(sb)}, nil
}

// ListPodSandboxStats returns the resource use of the pods.
func (s *runtimeService) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	f := req.GetFilter()
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &runtimeapi.ListPodSandboxStatsResponse{}
	for _, sb := range s.sandboxes {
		if sb.ready && (f.GetId() == "" || f.GetId() == sb.id) && matchesLabels(sb.config.GetLabels(), f.GetLabelSelector()) {
			out.Stats = append(out.Stats, s.sandboxStats(sb))
		}
	}
	return out, nil
}

func (r *Runtime) sandboxStats(sb *sandbox) *runtimeapi.PodSandboxStats {
	linux := &runtimeapi.LinuxPodSandboxStats{}
	memory := uint64(0)
	for _, c := range r.containers {
		if c.sandbox == sb && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			linux.Containers = append(linux.Containers, r.containerStats(c))
			memory += containerMemory
		}
	}
	now := time.Now().UnixNano()
	linux.Cpu = &runtimeapi.CpuUsage{Timestamp: now, UsageCoreNanoSeconds: &runtimeapi.UInt64Value{}, UsageNanoCores: &runtimeapi.UInt64Value{}}
	linux.Memory = &runtimeapi.MemoryUsage{Timestamp: now, WorkingSetBytes: &runtimeapi.UInt64Value{Value: memory}, UsageBytes: &runtimeapi.UInt64Value{Value: memory}}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: sb.id, Metadata: sb.config.GetMetadata(), Labels: sb.config.GetLabels(), Annotations: sb.config.GetAnnotations(),
		},
		Linux: linux,
	}
}
