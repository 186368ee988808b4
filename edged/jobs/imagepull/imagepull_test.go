package imagepull_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/jobs/imagepull"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestMain(m *testing.M) {
	flusher := goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")
	goleak.VerifyTestMain(kit.AwaitGoroutines(m, flusher), flusher)
}

// TestPuller_Hollow pulls through a CRI socket.
func TestPuller_Hollow(t *testing.T) {
	dir := t.TempDir()
	runtime, err := hollow.New(hollow.Config{Socket: filepath.Join(dir, "cri.sock"), Dir: dir}, zaptest.NewLogger(t))
	kit.Must(t, err)
	streamstest.StartPart(t, runtime.Start)
	<-runtime.Ready()
	p := imagepull.Puller{Endpoint: runtime.Endpoint()}
	kit.Must(t, p.Pull(t.Context(), "registry.example/app:1", nil))
	if err := p.Pull(t.Context(), "registry.example/missing:1", nil); err == nil {
		t.Error("a missing image was pulled")
	}
	if found, err := p.Mountpoint(t.Context()); err != nil || found != dir {
		t.Errorf("file system of images: %q %v", found, err)
	}
	if p.Has(t.Context(), "registry.example/app:1") {
		t.Error("a tag says that the image is there")
	}
	// The hollow runtime makes up its digests.
	if err := p.Pull(t.Context(), "registry.example/app@sha256:"+strings.Repeat("0", 64), nil); err == nil || !strings.Contains(err.Error(), "digest") {
		t.Errorf("an image with another digest: %v", err)
	}
}

// imageServer is an image service that admits one user.
type imageServer struct {
	runtimeapi.UnimplementedImageServiceServer
	mu    sync.Mutex
	asked []string // guarded by mu
}

func (s *imageServer) PullImage(_ context.Context, r *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprintf("%s %s:%s", r.GetImage().GetImage(), r.GetAuth().GetUsername(), r.GetAuth().GetPassword()))
	if r.GetAuth().GetPassword() != "right" {
		return nil, status.Error(codes.PermissionDenied, "no")
	}
	return &runtimeapi.PullImageResponse{}, nil
}

func serve(t *testing.T) (*imageServer, imagepull.Puller) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	kit.Must(t, err)
	service, server := &imageServer{}, grpc.NewServer()
	runtimeapi.RegisterImageServiceServer(server, service)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		kit.Must(t, <-ended)
	})
	return service, imagepull.Puller{Endpoint: "unix://" + socket}
}

// dockerConfig returns a Secret as kubectl create secret docker-registry makes it.
func dockerConfig(auths ...string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson,
		Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{` + strings.Join(auths, ",") + `}}`)},
	}
}

func auth(registry, password string) string {
	return fmt.Sprintf(`%q:{"auth":%q}`, registry, base64.StdEncoding.EncodeToString([]byte("user:"+password)))
}

// TestPuller_DockerConfig: a registry gets its own credentials and no other's.
func TestPuller_DockerConfig(t *testing.T) {
	service, p := serve(t)
	secret := dockerConfig(auth("other.example", "wrong"), auth("registry.example:5000", "right"), auth("https://index.docker.io/v1/", "right"))
	for _, image := range []string{"registry.example:5000/a/app:1", "registry.example:5000/app", "library/app:1", "app"} {
		if err := p.Pull(t.Context(), image, secret); err != nil {
			t.Errorf("%s: %v", image, err)
		}
	}
	for _, asked := range service.asked {
		if !strings.HasSuffix(asked, " user:right") {
			t.Errorf("asked with %q", asked)
		}
	}
	if err := p.Pull(t.Context(), "stranger.example/app:1", secret); status.Code(err) != codes.PermissionDenied && err == nil {
		t.Error("a registry without credentials admits")
	}
	if last := service.asked[len(service.asked)-1]; last != "stranger.example/app:1 :" {
		t.Errorf("a registry without credentials was asked with %q", last)
	}
}

// A Secret of another type, or one that cannot be read, is an error without any of its content.
func TestPuller_UnusableSecrets(t *testing.T) {
	service, p := serve(t)
	opaque := dockerConfig()
	opaque.Type = corev1.SecretTypeOpaque
	broken := dockerConfig(`"top-secret`)
	for name, secret := range map[string]*corev1.Secret{"opaque": opaque, "broken": broken, "empty": {Type: corev1.SecretTypeDockerConfigJson}} {
		if err := p.Pull(t.Context(), "registry.example/app:1", secret); err == nil || strings.Contains(err.Error(), "top-secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, asked := range service.asked {
		if asked != "registry.example/app:1 :" {
			t.Errorf("asked with %q", asked)
		}
	}
}
