package kubelet

import (
	"context"
	"fmt"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// SandboxClient queries a container runtime for the pods that it runs.
type SandboxClient struct {
	// Endpoint is the runtime's endpoint, as in Config.RuntimeEndpoint.
	Endpoint string
}

// Addresses returns the addresses that the runtime has assigned to a running pod, by its UID. It returns none for a pod in
// the host's network or one that does not run. Each call has a connection of its own.
func (s SandboxClient) Addresses(ctx context.Context, podUID string) ([]netip.Addr, error) {
	conn, err := grpc.NewClient(s.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dial runtime: %w", err)
	}
	defer func() { _ = conn.Close() }()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	found, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State:         &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		LabelSelector: map[string]string{kubelettypes.KubernetesPodUIDLabel: podUID},
	}})
	if err != nil {
		return nil, fmt.Errorf("find pod: %w", err)
	}
	var addresses []netip.Addr
	for _, sandbox := range found.GetItems() {
		status, err := runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.GetId()})
		if err != nil {
			return nil, fmt.Errorf("status of pod: %w", err)
		}
		if status.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
			continue
		}
		network := status.GetStatus().GetNetwork()
		texts := []string{network.GetIp()}
		for _, more := range network.GetAdditionalIps() {
			texts = append(texts, more.GetIp())
		}
		for _, text := range texts {
			if address, err := netip.ParseAddr(text); err == nil {
				addresses = append(addresses, address.Unmap())
			}
		}
	}
	return addresses, nil
}
