package kubelet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

const (
	nobodyUID   = 65534
	childFile   = "EDGED_TEST_CHILD" // names the task of a child process
	waitTimeout = 60 * time.Second   // a kubelet acts within seconds; the machine may be busy
)

// TestMain is kubetest's, but in a child it runs the child: a process can run one kubelet, so each test runs one in a process of its own.
func TestMain(m *testing.M) {
	if file := os.Getenv(childFile); file != "" {
		if err := runChild(file); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	shared.Verify(m)
}

var shared kubetest.Shared

// childOrder is the task of a child.
type childOrder struct {
	Node, Dir     string
	Port          int
	Host          string
	CA, Cert, Key []byte
}

func runChild(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var o childOrder
	if err := json.Unmarshal(data, &o); err != nil {
		return err
	}
	log, err := zap.NewDevelopment()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM) //nolint:forbidigo // the main function of a child process
	defer stop()
	runtime, err := hollow.New(hollow.Config{Socket: filepath.Join(o.Dir, "cri.sock")}, log)
	if err != nil {
		return err
	}
	client := &rest.Config{Host: o.Host, TLSClientConfig: rest.TLSClientConfig{CAData: o.CA, CertData: o.Cert, KeyData: o.Key}}
	cfg := kubelet.Config{Node: o.Node, Dir: filepath.Join(o.Dir, "kubelet"), RuntimeEndpoint: runtime.Endpoint(), Hollow: true, Port: o.Port, Taints: []corev1.Taint{edgeTaint()}, DropIn: []byte("syncFrequency: 2s")}
	cert, err := kubelet.NewServingCert(kubelet.ServingCertConfig{Node: cfg.Node, Dir: cfg.Dir}, log)
	if err != nil {
		return err
	}
	node, err := kubelet.New(cfg, cert, client, log)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return node.Start(ctx) }) // waits for the runtime
	g.Go(func() error { return runtime.Start(ctx) })
	g.Go(func() error {
		select {
		case <-node.Ready():
			return os.WriteFile(filepath.Join(o.Dir, "ready"), nil, 0o600)
		case <-ctx.Done():
			return nil
		}
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if err := node.Start(ctx); !errors.Is(err, kubelet.ErrAlreadyStarted) {
		return fmt.Errorf("second start: %w", err)
	}
	return nil
}

// openTempDir makes a folder of t.TempDir accessible to other users.
func openTempDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{filepath.Dir(dir), dir} {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // the child is another user
			t.Fatal(err)
		}
	}
	return dir
}

// startChild runs a hollow node as user nobody (or as the present user without root) until the test ends.
func startChild(t *testing.T, c *kubetest.Cluster, node string) string {
	t.Helper()
	dir := openTempDir(t)
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	_ = listener.Close()
	cfg := c.ConfigFor("system:node:"+node, "system:nodes")
	data, err := json.Marshal(childOrder{Node: node, Dir: dir, Port: port, Host: cfg.Host, CA: cfg.CAData, Cert: cfg.CertData, Key: cfg.KeyData})
	if err != nil {
		t.Fatal(err)
	}
	file, program := filepath.Join(dir, "order.json"), filepath.Join(dir, "child.test")
	if err := errors.Join(os.WriteFile(file, data, 0o600), copyFile(os.Args[0], program)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program) // the clean-up below ends it
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, t.Output(), t.Output()
	cmd.Env = append(os.Environ(), childFile+"="+file, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobodyUID, Gid: nobodyUID}
		for _, path := range []string{dir, file} {
			if err := os.Chown(path, nobodyUID, nobodyUID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(waitTimeout, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		if err := cmd.Wait(); err != nil {
			t.Errorf("node ended with %v", err)
		}
	})
	return dir
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// TestHollowAsUser runs a node without any privilege against a real apiserver with its real rules for nodes.
func TestHollowAsUser(t *testing.T) {
	c := shared.Cluster(t)
	client, ns := c.Client(t), c.Namespace(t)
	const node = "edged-user"
	nodes, err := client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + node})
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Stop()
	dir := startChild(t, c, node)
	registeredWithTaint(t, nodes)
	kit.Succeeds(t, waitTimeout, func() error {
		_, err := os.Stat(filepath.Join(dir, "ready"))
		return err
	})
	if _, err := client.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"colour": "green"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	createPod(t, client, ns, newPod(node, "web", "nginx"))
	createPod(t, client, ns, newPod(node, "job", "busybox", "sh", "-c", "echo hello; sleep 1; echo bye"))
	createPod(t, client, ns, newPod(node, "broken", "busybox", "sh", "-c", "exit 3"))
	waitPod(t, client, ns, "web", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodRunning && p.Status.PodIP != "" && p.Status.ContainerStatuses[0].Ready
	})
	waitPod(t, client, ns, "job", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	waitPod(t, client, ns, "broken", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.ContainerStatuses[0].State.Terminated.ExitCode == 3 && !p.Status.ContainerStatuses[0].Ready
	})
	wantConfigMapFollows(t, client, ns, dir)
	wantEvents(t, client, ns)

	if err := client.CoreV1().Pods(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, waitTimeout, func() error {
		list, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=web"})
		if err == nil && len(list.Items) > 0 {
			return errors.New("web is still there")
		}
		return err
	})
}

// edgeTaint is the taint with which the node of every test registers.
func edgeTaint() corev1.Taint {
	return corev1.Taint{Key: "node-role.kubernetes.io/edge", Effect: corev1.TaintEffectNoSchedule}
}

// registeredWithTaint checks the first version of the Node: a taint that came later would admit a pod before it.
func registeredWithTaint(t *testing.T, nodes watch.Interface) {
	t.Helper()
	event := kit.Receive(t, "a Node is registered", nodes.ResultChan())
	object, ok := event.Object.(*corev1.Node)
	if !ok || event.Type != watch.Added || !slices.Contains(object.Spec.Taints, edgeTaint()) {
		t.Errorf("the Node's first version: %s %v", event.Type, event.Object)
	}
}

func newPod(node, name, image string, command ...string) *corev1.Pod {
	grace := int64(5)
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no,
			Containers: []corev1.Container{{Name: "c", Image: image, Command: command, VolumeMounts: []corev1.VolumeMount{{Name: "settings", MountPath: "/settings"}}}},
			Volumes:    []corev1.Volume{{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}},
		},
	}
}

func createPod(t *testing.T, client kubernetes.Interface, ns string, p *corev1.Pod) {
	t.Helper()
	if _, err := client.CoreV1().Pods(ns).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waitPod(t *testing.T, client kubernetes.Interface, ns, name string, holds func(*corev1.Pod) bool) {
	t.Helper()
	kit.Succeeds(t, waitTimeout, func() error {
		p, err := client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && !holds(p) {
			return fmt.Errorf("pod %s: %s %v", name, p.Status.Phase, p.Status.ContainerStatuses)
		}
		return err
	})
}

// wantConfigMapFollows changes a ConfigMap and waits for the file in the running pod's volume.
func wantConfigMapFollows(t *testing.T, client kubernetes.Interface, ns, dir string) {
	t.Helper()
	web, err := client.CoreV1().Pods(ns).Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "kubelet/pods", string(web.UID), "volumes/kubernetes.io~configmap/settings/colour")
	has := func(want string) {
		t.Helper()
		kit.Succeeds(t, waitTimeout, func() error {
			got, err := os.ReadFile(file)
			if err == nil && string(got) != want {
				return fmt.Errorf("file holds %q, want %q", got, want)
			}
			return err
		})
	}
	has("green")
	if _, err := client.CoreV1().ConfigMaps(ns).Update(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"colour": "blue"},
	}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	has("blue")
}

// wantEvents also proves that the kubelet got its real recorder where /dev/kmsg cannot be read.
func wantEvents(t *testing.T, client kubernetes.Interface, ns string) {
	t.Helper()
	kit.Succeeds(t, waitTimeout, func() error {
		list, err := client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			seen = append(seen, e.InvolvedObject.Name+"/"+e.Reason)
		}
		all := strings.Join(seen, " ")
		for _, want := range []string{"web/Pulled", "web/Started", "job/Started"} {
			if !strings.Contains(all, want) {
				return fmt.Errorf("no event %s among %s", want, all)
			}
		}
		return nil
	})
}
