package kubelet_test

import (
	"errors"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/edged/kubelet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestSettings(t *testing.T) {
	base := kubelet.Config{Node: "edge-1", Dir: "/var/lib/frond/kubelet", RuntimeEndpoint: "unix:///run/containerd/containerd.sock"}
	full := base
	full.CgroupDriver, full.CgroupRoot, full.StaticPodPath, full.MaxPods, full.Port = "cgroupfs", "/frond/edge-1", "/etc/frond/pods", 50, 10350
	full.Taints = []corev1.Taint{edgeTaint()}
	full.CertFile, full.KeyFile, full.ClientCAFile, full.ClusterDNS, full.ClusterDomain = "/c.crt", "/c.key", "/ca.crt", []string{"10.96.0.10"}, "cluster.local"
	full.DropIn = []byte("maxPods: 60\nauthentication:\n  anonymous: {enabled: true}\nmakeIPTablesUtilChains: null\n")
	hollow := base
	hollow.Hollow = true
	for name, tt := range map[string]struct {
		cfg  kubelet.Config
		able bool
	}{"default": {base, true}, "full": {full, false}, "hollow": {hollow, true}} {
		t.Run(name, func(t *testing.T) {
			got, err := kubelet.Settings(tt.cfg, tt.able)
			if err != nil {
				t.Fatal(err)
			}
			text, err := yaml.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(golden, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(text)); diff != "" {
				t.Errorf("settings (-want +got):\n%s", diff)
			}
			if _, err := kubelet.New(tt.cfg, nil, &rest.Config{}, zaptest.NewLogger(t)); err != nil {
				t.Errorf("upstream refuses the settings: %v", err)
			}
		})
	}
}

func TestConfig_RejectsFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*kubelet.Config)
		want   string
	}{
		"node":      {func(c *kubelet.Config) { c.Node = "Edge 1" }, "node"},
		"dir":       {func(c *kubelet.Config) { c.Dir = "here" }, "dir"},
		"runtime":   {func(c *kubelet.Config) { c.RuntimeEndpoint = "/run/x.sock" }, "runtimeEndpoint"},
		"loopback":  {func(c *kubelet.Config) { c.NodeIP = "127.0.0.1" }, "nodeIP"},
		"cert":      {func(c *kubelet.Config) { c.CertFile = "/c.crt" }, "certFile"},
		"label":     {func(c *kubelet.Config) { c.Labels = map[string]string{"node-role.kubernetes.io/edge": ""} }, "label"},
		"key":       {func(c *kubelet.Config) { c.DropIn = []byte("maxPodz: 3") }, "maxPodz"},
		"not a map": {func(c *kubelet.Config) { c.DropIn = []byte("- 1") }, "drop-in"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := kubelet.Config{Node: "edge-1", Dir: "/d", RuntimeEndpoint: "unix:///x.sock"}
			tt.change(&cfg)
			_, err := kubelet.New(cfg, nil, &rest.Config{}, zaptest.NewLogger(t))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that names %q", err, tt.want)
			}
		})
	}
}

func TestConnGate_EndsAllConnections(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		if r.URL.Path == "/watch" {
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	for name, cfg := range map[string]*rest.Config{
		"dialler":   {Host: server.URL},
		"transport": {Host: server.URL, Transport: &http.Transport{}},
	} {
		t.Run(name, func(t *testing.T) {
			gate := kubelet.NewGate()
			kubelet.Stand(gate, cfg)
			client, err := rest.HTTPClientFor(cfg)
			if err != nil {
				t.Fatal(err)
			}
			get := func(path string) (*http.Response, error) {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				return client.Do(request)
			}
			watch, err := get("/watch")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = watch.Body.Close() }()
			kubelet.CloseGate(gate)
			if _, err := watch.Body.Read(make([]byte, 1)); err == nil {
				t.Error("a watch lived on")
			}
			again, err := get("/")
			if err == nil {
				_ = again.Body.Close()
			}
			if err == nil || errors.Is(err, http.ErrServerClosed) {
				t.Errorf("a new call: %v", err)
			}
		})
	}
}
