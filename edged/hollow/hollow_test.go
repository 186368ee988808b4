package hollow_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/hollow/hollowtest"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) {
	flusher := goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")
	goleak.VerifyTestMain(kit.AwaitGoroutines(m, flusher), flusher)
}

func startRuntime(t *testing.T, cfg hollow.Config) *hollow.Runtime {
	t.Helper()
	cfg.Socket = filepath.Join(t.TempDir(), "cri.sock")
	r, err := hollow.New(cfg, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("runtime ended with %v", err)
		}
	})
	select {
	case <-r.Ready():
	case err := <-ended:
		t.Fatalf("runtime did not start: %v", err)
	}
	return r
}

func TestRuntime_Contract(t *testing.T) {
	r := startRuntime(t, hollow.Config{})
	bed := hollowtest.Dial(t, r.Endpoint())
	bed.Pull = true
	hollowtest.Run(t, bed)
}

// TestContainerd_Contract runs the same contract on a real runtime: set CONTAINERD_SOCKET and import hollowtest.Image.
func TestContainerd_Contract(t *testing.T) {
	socket := os.Getenv("CONTAINERD_SOCKET")
	if socket == "" {
		t.Skip("CONTAINERD_SOCKET does not name the socket of a real runtime")
	}
	hollowtest.Run(t, hollowtest.Dial(t, socket))
}

func TestRuntime_InjectFault(t *testing.T) {
	r := startRuntime(t, hollow.Config{})
	bed := hollowtest.Dial(t, r.Endpoint())
	pull := func(name string) error {
		_, err := bed.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		return err
	}
	r.InjectFault("PullImage", hollow.Fault{Err: status.Error(codes.Unavailable, "registry is down"), Times: 2})
	for i, want := range []codes.Code{codes.Unavailable, codes.Unavailable, codes.OK} {
		if got := status.Code(pull("a")); got != want {
			t.Errorf("pull %d: %s, want %s", i, got, want)
		}
	}
	r.InjectFault("PullImage", hollow.Fault{Err: context.DeadlineExceeded})
	if err := pull("a"); status.Code(err) != codes.Unknown {
		t.Errorf("plain error: %v", err)
	}
	r.ClearFaults("PullImage")
	if err := pull("a"); err != nil {
		t.Errorf("after heal: %v", err)
	}
	if err := pull("example.com/missing:v1"); status.Code(err) != codes.NotFound {
		t.Errorf("missing image: %v", err)
	}
}

// The kubelet sends all podCIDRs of a Node in one string.
func TestRuntime_UsesNodesPodCIDR(t *testing.T) {
	r := startRuntime(t, hollow.Config{})
	bed := hollowtest.Dial(t, r.Endpoint())
	for podCIDRs, want := range map[string]string{"10.244.7.0/24": "10.244.7.1", "10.244.9.0/24,fd00:9::/64": "10.244.9.1"} {
		_, err := bed.Runtime.UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{
			NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: podCIDRs},
		}})
		if err != nil {
			t.Fatalf("%s: %v", podCIDRs, err)
		}
		made, err := bed.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "default", Uid: podCIDRs},
		}})
		if err != nil {
			t.Fatal(err)
		}
		pod, err := bed.Runtime.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: made.GetPodSandboxId()})
		if err != nil {
			t.Fatal(err)
		}
		if got := pod.GetStatus().GetNetwork().GetIp(); got != want {
			t.Errorf("%s: the pod has %s, want %s", podCIDRs, got, want)
		}
	}
}

func TestRuntime_ReplacesOldSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "cri.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := hollow.New(hollow.Config{Socket: socket}, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()
	<-r.Ready()
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}
