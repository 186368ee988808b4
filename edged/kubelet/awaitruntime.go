package kubelet

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// runtimeRetryInterval is the pause between two calls to a runtime that does not answer yet; containerd starts in 0.1 s.
	runtimeRetryInterval = 500 * time.Millisecond
	// runtimeAnswerTimeout limits one call.
	runtimeAnswerTimeout = 5 * time.Second
)

// awaitRuntime waits until the runtime answers. Upstream gives up after a second, and cannot be started again.
func awaitRuntime(ctx context.Context, endpoint string, log *zap.Logger) error {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("dial runtime: %w", err)
	}
	defer func() { _ = conn.Close() }()
	runtime := runtimeapi.NewRuntimeServiceClient(conn)
	retry := time.NewTicker(runtimeRetryInterval)
	defer retry.Stop()
	for first := true; ; first = false {
		version, err := askVersion(ctx, runtime)
		if err == nil {
			log.Info("runtime answers", zap.String("runtime", version.GetRuntimeName()), zap.String("version", version.GetRuntimeVersion()))
			return nil
		}
		if first {
			log.Warn("runtime does not answer yet, waiting for it", zap.String("endpoint", endpoint), zap.Error(err))
		}
		conn.ResetConnectBackoff() // gRPC would wait up to two minutes
		select {
		case <-retry.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func askVersion(ctx context.Context, runtime runtimeapi.RuntimeServiceClient) (*runtimeapi.VersionResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, runtimeAnswerTimeout)
	defer cancel()
	return runtime.Version(ctx, &runtimeapi.VersionRequest{})
}
