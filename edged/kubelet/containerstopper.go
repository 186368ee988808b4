package kubelet

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
)

// stopSlack is how long the runtime may take to stop a container beyond its grace time.
const stopSlack = 30 * time.Second

// ContainerStopper stops single containers of a runtime by CRI. The kubelet sees that they ended and follows the pod's
// restart policy: it restarts them in place, with its own backoff, and counts the restart.
type ContainerStopper struct {
	// Endpoint is the runtime's endpoint, as in Config.RuntimeEndpoint.
	Endpoint string
}

// Stop stops the running container of a pod and returns its id, or "" if none runs. The container gets grace seconds; with
// 0 it is killed. Each call has a connection of its own.
func (s ContainerStopper) Stop(ctx context.Context, namespace, pod, container string, grace int64) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(grace)*time.Second+stopSlack)
	defer cancel()
	conn, err := grpc.NewClient(s.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", fmt.Errorf("dial runtime: %w", err)
	}
	defer func() { _ = conn.Close() }()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	found, err := runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
		LabelSelector: map[string]string{
			kubelettypes.KubernetesPodNamespaceLabel: namespace, kubelettypes.KubernetesPodNameLabel: pod,
			kubelettypes.KubernetesContainerNameLabel: container,
		},
	}})
	if err != nil {
		return "", fmt.Errorf("find container: %w", err)
	}
	for _, c := range found.GetContainers() { // two only while a pod of the same name is being replaced
		id = c.GetId()
		if _, err := runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: grace}); err != nil {
			return id, fmt.Errorf("stop container %s: %w", id, err)
		}
	}
	return id, nil
}
