package kubelet_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/hollow/hollowtest"
	"github.com/frond-edge/frond/edged/kubelet"
)

// TestSandboxClient_Addresses queries the addresses of a pod while it runs, of one in the host's network, and after its end.
func TestSandboxClient_Addresses(t *testing.T) {
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // that one's path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // best effort in the temporary folder
	runtime, err := hollow.New(hollow.Config{Socket: filepath.Join(dir, "s"), PodCIDR: "10.1.2.0/24"}, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return runtime.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	<-runtime.Ready()
	bed := hollowtest.Dial(t, runtime.Endpoint())
	run := func(uid string, network runtimeapi.NamespaceMode) string {
		t.Helper()
		out, err := bed.Runtime.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: uid, Namespace: "default", Uid: uid}, LogDirectory: t.TempDir(),
			Labels: map[string]string{"io.kubernetes.pod.uid": uid},
			Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: network},
			}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return out.GetPodSandboxId()
	}
	id := run("web", runtimeapi.NamespaceMode_POD)
	run("other", runtimeapi.NamespaceMode_POD)
	run("host", runtimeapi.NamespaceMode_NODE)
	has := func(uid string, want ...netip.Addr) {
		t.Helper()
		got, err := kubelet.SandboxClient{Endpoint: runtime.Endpoint()}.Addresses(t.Context(), uid)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("addresses of %s: %v, %v, want %v", uid, got, err, want)
		}
	}
	has("web", netip.MustParseAddr("10.1.2.1"))
	has("other", netip.MustParseAddr("10.1.2.2"))
	has("host")
	has("unknown")
	if _, err := bed.Runtime.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Fatal(err)
	}
	has("web")
}
