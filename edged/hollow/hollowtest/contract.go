// Package hollowtest checks the contract that the hollow runtime shares with a real one.
//
// The tests of package hollow call Run, as may any test with a CRI socket of containerd. It uses only CRI's guarantees and
// those that a kubelet relies on, so that a difference is a fault of the hollow runtime, not a matter of taste.
package hollowtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/test/kit"
)

const (
	// callTimeout leaves time for a busy machine on which a real runtime is slow.
	callTimeout = 30 * time.Second
	pollEvery   = 20 * time.Millisecond
)

// Image is the image with a shell that Run uses. On a real runtime it must have been imported.
const Image = "localhost/frond/tools:dev"

// Target is the runtime under test.
type Target struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
	Pull    bool // pull Image first (hollow); a real runtime without a registry has it imported
}

// Dial connects to a CRI socket, given as a path or as unix:///path.
func Dial(t testing.TB, socket string) Target {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+strings.TrimPrefix(socket, "unix://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("dial runtime: %v", err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return Target{Runtime: runtimeapi.NewRuntimeServiceClient(conn), Images: runtimeapi.NewImageServiceClient(conn)}
}

// Run checks the contract on one runtime.
func Run(t *testing.T, bed Target) {
	if bed.Pull {
		if _, err := bed.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: Image}}); err != nil {
			t.Fatalf("pull %s: %v", Image, err)
		}
	}
	for name, check := range map[string]func(*testing.T, Target){
		"node":              checkNode,
		"images":            checkImages,
		"sandbox life":      checkSandboxLife,
		"container life":    checkContainerLife,
		"exit code":         checkExitCode,
		"log":               checkContainerLog,
		"stop with grace":   checkStopWithGrace,
		"exec":              checkExecSync,
		"sandbox ends all":  checkSandboxEndsAll,
		"unknown ids":       checkUnknownIDs,
		"names are taken":   checkNamesAreTaken,
		"events":            checkEvents,
		"image of the void": checkMissingImage,
	} {
		t.Run(name, func(t *testing.T) { check(t, bed) })
	}
}

// testPod is a sandbox created for one check; the test removes it with all its containers at the end.
type testPod struct {
	target Target
	id     string
	config *runtimeapi.PodSandboxConfig
}

func (b Target) sandboxConfig(t *testing.T) *runtimeapi.PodSandboxConfig {
	t.Helper()
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "contract", Namespace: "hollowtest", Uid: uuid.NewString()},
		LogDirectory: t.TempDir(),
		Labels:       map[string]string{"test": uuid.NewString()},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}},
	}
}

func (b Target) newPod(t *testing.T) *testPod {
	t.Helper()
	config := b.sandboxConfig(t)
	out, err := b.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
	if err != nil {
		t.Fatalf("run sandbox: %v", err)
	}
	t.Cleanup(func() { b.removePod(t, out.GetPodSandboxId()) })
	return &testPod{target: b, id: out.GetPodSandboxId(), config: config}
}

func (b Target) removePod(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), callTimeout)
	defer cancel()
	_, errStop := b.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	_, errRemove := b.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	if err := errors.Join(errStop, errRemove); err != nil {
		t.Errorf("remove sandbox: %v", err)
	}
}

func (p *testPod) createContainer(t *testing.T, name, script string) string {
	t.Helper()
	out, err := p.target.Runtime.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.id, SandboxConfig: p.config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Image:    &runtimeapi.ImageSpec{Image: Image},
			Command:  []string{"sh", "-c", script},
			Labels:   p.config.GetLabels(),
			LogPath:  name + ".log",
			Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
			}},
		},
	})
	if err != nil {
		t.Fatalf("create container: %v", err)
	}
	return out.GetContainerId()
}

func (p *testPod) startContainer(t *testing.T, name, script string) string {
	t.Helper()
	id := p.createContainer(t, name, script)
	if _, err := p.target.Runtime.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("start container: %v", err)
	}
	return id
}

func (b Target) containerStatus(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	out, err := b.Runtime.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatalf("container status: %v", err)
	}
	return out.GetStatus()
}

func (b Target) waitExited(t *testing.T, id string) *runtimeapi.ContainerStatus {
	t.Helper()
	var last *runtimeapi.ContainerStatus
	kit.Eventually(t, "container exits", func() bool {
		last = b.containerStatus(t, id)
		return last.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return last
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("error %v: code %s, want %s", err, got, want)
	}
}

func readLog(t *testing.T, p *testPod, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(p.config.GetLogDirectory(), name+".log"))
	if err != nil {
		t.Fatalf("read container log: %v", err)
	}
	return string(data)
}
