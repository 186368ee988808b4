package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/frond-edge/frond/test/kit"
)

// child is one process of the control plane.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string
	// done is closed when the process is gone.
	done chan struct{}
}

// startCluster starts the control plane in a new folder: etcd, then the apiserver until it is ready, then the rest.
func startCluster(ctx context.Context, binary string, options Options) (started *Cluster, err error) {
	dir, err := os.MkdirTemp("", "kubetest-")
	if err != nil {
		return nil, fmt.Errorf("make the folder: %w", err)
	}
	ports, err := kit.FreePorts(3)
	if err != nil {
		return nil, err
	}
	authority, err := newTestCA()
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, port: ports[2], pki: authority}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	if err := authority.writeFiles(dir); err != nil {
		return nil, err
	}
	if err := os.WriteFile(c.path("audit.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return nil, fmt.Errorf("write the audit policy: %w", err)
	}
	if err := c.startChild(binary, "etcd", etcdFlags(dir, ports[0], ports[1])...); err != nil {
		return nil, err
	}
	if err := c.startChild(binary, "kube-apiserver", c.apiserverFlags(ports[0])...); err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx); err != nil {
		return nil, err
	}
	if len(options.Controllers) > 0 {
		if err := c.startControllers(binary, options); err != nil {
			return nil, err
		}
	}
	if options.Scheduler {
		if err := c.startScheduler(binary); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func etcdFlags(dir string, client, peer int) []string {
	clientURL, peerURL := fmt.Sprintf("http://127.0.0.1:%d", client), fmt.Sprintf("http://127.0.0.1:%d", peer)
	return []string{
		"--data-dir=" + filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + clientURL, "--advertise-client-urls=" + clientURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=default=" + peerURL,
	}
}

// apiserverFlags returns the flags of a production cluster that affect behaviour: authorizers and admission.
func (c *Cluster) apiserverFlags(etcd int) []string {
	return []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", etcd),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.port),
		"--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file=" + c.path("apiserver.crt"), "--tls-private-key-file=" + c.path("apiserver.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.path("sa.pub"), "--service-account-signing-key-file=" + c.path("sa.key"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--audit-policy-file=" + c.path("audit.yaml"), "--audit-log-path=" + c.path("audit.log"),
	}
}

func (c *Cluster) startControllers(binary string, options Options) error {
	kubeconfig, err := c.writeKubeconfig("system:kube-controller-manager", "system:masters")
	if err != nil {
		return err
	}
	return c.startChild(binary, "kube-controller-manager", append([]string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=1000", "--kube-api-burst=2000", // the defaults delay all controllers by 5 s
		"--service-account-private-key-file=" + c.path("sa.key"), "--root-ca-file=" + c.path("ca.crt"),
		"--controllers=" + strings.Join(options.Controllers, ","),
	}, options.ControllerFlags...)...)
}

func (c *Cluster) startScheduler(binary string) error {
	kubeconfig, err := c.writeKubeconfig("system:kube-scheduler", "system:masters")
	if err != nil {
		return err
	}
	return c.startChild(binary, "kube-scheduler", "--kubeconfig="+kubeconfig, "--leader-elect=false", "--secure-port=0")
}

func (c *Cluster) writeKubeconfig(user, group string) (string, error) {
	config := c.ConfigFor(user, group)
	file := clientcmdapi.NewConfig()
	file.Clusters["test"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	file.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	file.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	file.CurrentContext = "test"
	path := c.path(strings.ReplaceAll(user, ":", "-") + ".kubeconfig")
	if err := clientcmd.WriteToFile(*file, path); err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}

// awaitReady waits until the apiserver is ready and has created its own roles, which the other components read at start.
func (c *Cluster) awaitReady(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			_, err = client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apiserver not ready: %w", errors.Join(err, c.logTails()))
		case <-tick.C:
		}
		for _, child := range c.children {
			select {
			case <-child.done:
				return fmt.Errorf("%s ended at once: %w", child.name, c.logTails())
			default:
			}
		}
	}
}

func (c *Cluster) startChild(binary, name string, flags ...string) error {
	child := &child{name: name, log: c.path(name + ".log"), done: make(chan struct{})}
	log, err := os.OpenFile(child.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", name, err)
	}
	child.cmd = exec.Command(binary, append([]string{name}, flags...)...) //nolint:noctx // stop ends it, in order
	child.cmd.Stdout, child.cmd.Stderr = log, log
	child.cmd.Env = append(os.Environ(), "GOGC=off", "GOMEMLIMIT=256MiB") // short-lived: fewer collections
	child.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := child.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, errors.Join(err, log.Close()))
	}
	c.children = append(c.children, child)
	go child.wait(log) // stop waits for it through done
	return nil
}

func (c *child) wait(log io.Closer) {
	defer close(c.done)
	_ = c.cmd.Wait()
	_ = log.Close()
}

// stop stops the control plane and removes its folder.
func (c *Cluster) stop() {
	c.stopChildren()
	_ = os.RemoveAll(c.dir)
}

// logTails returns the end of each child's log, as an error.
func (c *Cluster) logTails() error {
	const most = 2000
	var all []error
	for _, child := range c.children {
		log, err := os.ReadFile(child.log)
		if err != nil {
			continue
		}
		log = bytes.TrimSpace(log)
		all = append(all, fmt.Errorf("%s: …%s", child.name, log[max(0, len(log)-most):]))
	}
	return errors.Join(all...)
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

// Snapshot stops the control plane, copies etcd's data and starts everything again. The copy is removed with the test.
func (c *Cluster) Snapshot(t testing.TB) string {
	t.Helper()
	snapshot := filepath.Join(t.TempDir(), "etcd")
	c.whileStopped(t, func() error { return os.CopyFS(snapshot, os.DirFS(c.path("etcd"))) })
	return snapshot
}

// Restore restores the cluster to a Snapshot. Existing watchers see inconsistent state, as after a real restore.
func (c *Cluster) Restore(t testing.TB, snapshot string) {
	t.Helper()
	c.whileStopped(t, func() error {
		if err := os.RemoveAll(c.path("etcd")); err != nil {
			return err
		}
		return os.CopyFS(c.path("etcd"), os.DirFS(snapshot))
	})
}

// whileStopped runs do while the control plane is stopped.
func (c *Cluster) whileStopped(t testing.TB, do func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	c.stopChildren()
	if err := do(); err != nil {
		t.Fatalf("while the control plane is down: %v", err)
	}
	children := c.children
	c.children = nil
	for _, child := range children {
		if err := c.startChild(child.cmd.Path, child.name, child.cmd.Args[2:]...); err != nil {
			t.Fatal(err)
		}
		if child.name == "kube-apiserver" {
			if err := c.awaitReady(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// stopChildren stops the children in reverse order, each awaited: an apiserver must not outlive its etcd.
func (c *Cluster) stopChildren() {
	for _, child := range slices.Backward(c.children) {
		_ = child.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-child.done:
		case <-time.After(10 * time.Second):
			_ = child.cmd.Process.Kill()
			<-child.done
		}
	}
}
