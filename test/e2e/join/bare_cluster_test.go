package join_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// waitTimeout bounds a wait for something that should take seconds: the machines are shared and slow at times.
const waitTimeout = 2 * time.Minute

// bareCluster is a cluster without Frond, an administrator's shell, and the pods' network.
type bareCluster struct {
	*network
	programs   toolchain.Paths
	kube       kubernetes.Interface
	config     *rest.Config
	kubeconfig string
	dir        string
	running    []*pod // all of the manifests
}

func newBareCluster(t *testing.T) *bareCluster {
	t.Helper()
	requireTools(t)
	bare := &kubetest.Shared{Options: kubetest.Options{Controllers: []string{"namespace-controller"}}} // nothing was ever installed there
	t.Cleanup(bare.Cleanup)
	k := bare.Cluster(t)
	programs, err := toolchain.Ensure(t.Context(), toolchain.Request{Kube: true, Nats: true, Frond: true}, os.Stderr)
	kit.Must(t, err)
	dir := t.TempDir()
	kit.Must(t, errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755))) // pods are other users
	c := &bareCluster{network: newNetwork(t), programs: programs, kube: k.Client(t), config: k.Config(), dir: dir}
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: c.config.Host, CertificateAuthorityData: c.config.CAData}
	file.AuthInfos["c"] = &clientcmdapi.AuthInfo{ClientCertificateData: c.config.CertData, ClientKeyData: c.config.KeyData}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	file.CurrentContext = "c"
	c.kubeconfig = filepath.Join(dir, "kubeconfig")
	kit.Must(t, clientcmd.WriteToFile(*file, c.kubeconfig))
	return c
}

// requireTools skips the test, or fails it if REQUIRE names root, where programs are missing.
func requireTools(t *testing.T) {
	t.Helper()
	var missing []string
	for _, program := range []string{"nft", "ip", "nsenter", "unshare", "systemctl", "/lib/systemd/systemd"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if os.Geteuid() != 0 {
		missing = append(missing, "root")
	}
	if len(missing) == 0 {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "root") {
		t.Fatalf("REQUIRE names root, and here is no %v", missing)
	}
	t.Skipf("gateways are machines of their own here, which takes %v", missing)
}

// mustRun runs a program as the administrator and returns its output; the test ends if it fails.
func (c *bareCluster) mustRun(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := c.runProgram(t, program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// runProgram is mustRun for a program that may fail; the error has its output.
func (c *bareCluster) runProgram(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	var talk bytes.Buffer
	cmd.Stderr = &talk
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w: %s%s", filepath.Base(program), strings.Join(args, " "), err, out, talk.String())
	}
	return string(out), nil
}

func (c *bareCluster) runFrond(t *testing.T, args ...string) string {
	t.Helper()
	return c.mustRun(t, c.programs.Frond, args...)
}

func (c *bareCluster) runKubectl(t *testing.T, args ...string) string {
	t.Helper()
	return c.mustRun(t, c.kubectlProgram(), args...)
}

func (c *bareCluster) kubectlProgram() string {
	return filepath.Join(filepath.Dir(c.programs.Kube), "kubectl")
}

// resourceVersions returns those of all Secrets and ConfigMaps of frond-system.
func (c *bareCluster) resourceVersions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	secrets, err := c.kube.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for _, o := range secrets.Items {
		all["secret "+o.Name] = o.ResourceVersion
	}
	maps, err := c.kube.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for _, o := range maps.Items {
		all["configmap "+o.Name] = o.ResourceVersion
	}
	return all
}

// decodeJSON decodes the output of a command with -o json.
func decodeJSON[T any](t *testing.T, out string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Errorf("%v in %q", err, out) // what else the command said is in the caller's words
	}
	return v
}

// eventually waits until a condition holds; missing describes what is missing.
func eventually(t *testing.T, what string, missing func(ctx context.Context) error) {
	t.Helper()
	kit.Until(t, what, waitTimeout, 200*time.Millisecond, missing)
}
