package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
)

// stockKubelet is an upstream kubelet, started as on any node, in the namespaces of edge-1.
type stockKubelet struct {
	cfg       config.EdgeCore
	namespace int // id of a process in the gateway's namespaces
	dir       string
	cmd       *exec.Cmd
}

// newStockKubelet writes the files of a kubelet that replaces the one in edgecore: kubeconfig and configuration.
func newStockKubelet(t *testing.T, cfg config.EdgeCore) *stockKubelet {
	t.Helper()
	cfg.Kubelet.CertFile, cfg.Kubelet.KeyFile = cfg.LocalAPI.CertFile, cfg.LocalAPI.KeyFile // edgecore's own kubelet requests a certificate
	s := &stockKubelet{cfg: cfg, namespace: shared.PID("containerd-1"), dir: t.TempDir()}
	file := clientcmdapi.NewConfig()
	file.Clusters["local"] = &clientcmdapi.Cluster{Server: "https://" + cfg.LocalAPI.Address, CertificateAuthority: cfg.LocalAPI.ClientCAFile}
	file.AuthInfos["node"] = &clientcmdapi.AuthInfo{ClientCertificate: cfg.Kubelet.CertFile, ClientKey: cfg.Kubelet.KeyFile} // of system:node:edge-1
	file.Contexts["local"] = &clientcmdapi.Context{Cluster: "local", AuthInfo: "node"}
	file.CurrentContext = "local"
	if err := clientcmd.WriteToFile(*file, filepath.Join(s.dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": cfg.Runtime.Endpoint, "staticPodPath": cfg.Kubelet.StaticPodPath,
		"cgroupDriver": cfg.Kubelet.CgroupDriver, "cgroupRoot": cfg.Kubelet.CgroupRoot,
		"address": "127.0.0.1", "tlsCertFile": cfg.Kubelet.CertFile, "tlsPrivateKeyFile": cfg.Kubelet.KeyFile,
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": cfg.Kubelet.ClientCAFile}},
		"podLogsDir":     filepath.Join(cfg.Dir, "kubelet", "pod-logs"), "failCgroupV1": false, "failSwapOn": false,
		"oomScoreAdj": 0, "makeIPTablesUtilChains": false,
		"evictionHard": cfg.Kubelet.Settings["evictionHard"], "imageGCHighThresholdPercent": 100, // the disk may be nearly full
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "kubelet.yaml"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// start runs the kubelet until kill, or at the latest until the test ends.
func (s *stockKubelet) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(shared.Dir(), "logs", "stock-kubelet.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	ns := fmt.Sprintf("/proc/%d/ns/", s.namespace)
	s.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), "nsenter", "--net="+ns+"net", "--mount="+ns+"mnt", "--",
		filepath.Join(shared.Dir(), "bin", "kubelet"), "--config="+filepath.Join(s.dir, "kubelet.yaml"), "--kubeconfig="+filepath.Join(s.dir, "kubeconfig"),
		"--hostname-override="+s.cfg.Node, "--node-ip="+s.cfg.Kubelet.NodeIP, "--root-dir="+filepath.Join(s.cfg.Dir, "kubelet"), "--cert-dir="+filepath.Join(s.dir, "pki"))
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// kill ends the kubelet as a crash would.
func (s *stockKubelet) kill() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	s.cmd = nil
	return err
}

// exchangeKubelet makes edgecore of edge-1 run without its kubelet, and a stock one use its API. It undoes that when the test ends.
func exchangeKubelet(t *testing.T) *stockKubelet {
	t.Helper()
	path := filepath.Join(shared.Dir(), "edge-1", "edgecore.yaml")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.ParseEdgeCore(before)
	if err != nil {
		t.Fatal(err)
	}
	s := newStockKubelet(t, cfg)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		errs := []error{s.kill(), os.WriteFile(path, before, 0o600)}
		if shared.PID("edge-1") != 0 {
			errs = append(errs, shared.Kill(ctx, "edge-1"))
		}
		if err := errors.Join(append(errs, shared.Start(ctx, "edge-1"))...); err != nil {
			t.Errorf("give edge-1 its kubelet back: %v", err)
		}
	})
	cfg.Kubelet.External = true
	after, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Kill(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, after, 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t) // before its API, as after a boot
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	return s
}

// renewedAfter describes what is missing until the gateway's own API shows a Lease that was renewed after a moment.
func renewedAfter(ctx context.Context, cfg config.EdgeCore, moment time.Time) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", cfg.LocalAPI.Socket)
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/"+cfg.Node, nil)
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Accept", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	var lease coordinationv1.Lease
	if err := json.NewDecoder(response.Body).Decode(&lease); err != nil {
		return err.Error()
	}
	if lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(moment) {
		return fmt.Sprintf("renewed at %v", lease.Spec.RenewTime)
	}
	return ""
}

// TestStockKubelet_TakesOver hands a gateway's pods over from the kubelet in edgecore to an upstream one that has only the
// local API. It adopts running pods and runs new ones, also after it was killed with the link cut, and kubectl reaches it.
func TestStockKubelet_TakesOver(t *testing.T) {
	needContainers(t)
	applyManifest(t, manyConfigMaps("adopted", "edge-1", 2))
	before := containerRuns(awaitRunning(t, "app=adopted", 1))
	s := exchangeKubelet(t)
	eventually(t, "the node is Ready", nodeReady("edge-1"))
	applyManifest(t, manyConfigMaps("later", "edge-1", 2))
	later := containerRuns(awaitRunning(t, "app=later", 1))
	if after := containerRuns(awaitRunning(t, "app=adopted", 1)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers changed:\n%v\n%v", before, after)
	}
	eventually(t, "kubectl exec", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "exec", "later", "--", "cat", "/all/v1")
		if err != nil || strings.TrimSpace(out) != "0" {
			return fmt.Sprintf("%q: %v", out, err)
		}
		return ""
	})
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-1", true); err != nil {
		t.Fatal(err)
	}
	if err := s.kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	s.start(t)
	eventually(t, "the kubelet speaks to the local API without a link", func(ctx context.Context) string {
		return renewedAfter(ctx, s.cfg, killed)
	})
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is Ready", nodeReady("edge-1"))
	if err := setConfigMap(t.Context(), sharedKube, "later-1", "news"); err != nil {
		t.Fatal(err)
	}
	awaitValue(t, "later-1", "news", "edge-1")
	if after := containerRuns(awaitRunning(t, "app=later", 1)); fmt.Sprint(after) != fmt.Sprint(later) {
		t.Errorf("containers changed:\n%v\n%v", later, after)
	}
	if after := containerRuns(awaitRunning(t, "app=adopted", 1)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers changed:\n%v\n%v", before, after)
	}
}
