package frond_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/internal/toolchain"
)

const (
	linkRateFile = "deploy/cloud/link-rate/init-container.yaml"
	// inNamespace is set in the environment of the test that runs in a network namespace of its own.
	inNamespace = "FROND_TEST_IN_NAMESPACE"
)

// TestLinkRate_QueuesNewLinks runs the rule of deploy/cloud/link-rate in a network namespace: new links beyond the rate wait and are made
// later, and nothing else is slowed down.
func TestLinkRate_QueuesNewLinks(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		checkLinkRate(t)
		return
	}
	needNamespaceTools(t)
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("in a network namespace: %v\n%s", err, out)
	}
}

// needNamespaceTools skips the test, or fails it if REQUIRE names root, where namespaces with rules cannot be made.
func needNamespaceTools(t *testing.T) {
	t.Helper()
	var missing []string
	for _, program := range []string{"nft", "ip", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if os.Geteuid() != 0 || len(missing) == 0 && exec.CommandContext(t.Context(), "unshare", "--net", "true").Run() != nil {
		missing = append(missing, "root")
	}
	if len(missing) == 0 {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "root") {
		t.Fatalf("REQUIRE names root, and here is no %v", missing)
	}
	t.Skipf("a network namespace with rules takes %v", missing)
}

// linkRateContainer returns the container of the component.
func linkRateContainer(t *testing.T) corev1.Container {
	t.Helper()
	var set appsv1.StatefulSet
	if err := yaml.UnmarshalStrict([]byte(read(t, linkRateFile)), &set); err != nil {
		t.Fatal(err)
	}
	if n := len(set.Spec.Template.Spec.InitContainers); n != 1 {
		t.Fatalf("%d init containers", n)
	}
	return set.Spec.Template.Spec.InitContainers[0]
}

// setLinkRate runs the container's command as a kubelet would, with another rate and burst.
func setLinkRate(t *testing.T, rate, burst string) {
	t.Helper()
	c := linkRateContainer(t)
	values := map[string]string{"RATE": rate, "BURST": burst}
	var pairs []string
	for _, v := range c.Env {
		pairs = append(pairs, "$("+v.Name+")", values[v.Name])
		delete(values, v.Name)
	}
	if len(values) > 0 {
		t.Fatalf("the container has no variables %v", values)
	}
	var args []string
	for _, arg := range append(c.Command[1:], c.Args...) {
		args = append(args, strings.NewReplacer(pairs...).Replace(arg))
	}
	mustExec(t, c.Command[0], args...)
}

// mustExec runs a program and returns its output.
func mustExec(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// checkLinkRate is the test inside the namespace.
func checkLinkRate(t *testing.T) {
	t.Helper()
	mustExec(t, "ip", "link", "set", "lo", "up")
	const leaf, websocket, client = "127.0.0.1:7422", "127.0.0.1:7443", "127.0.0.1:4222"
	for _, address := range []string{leaf, websocket, client} {
		serveEcho(t, address)
	}
	early, err := new(net.Dialer).DialContext(t.Context(), "tcp", leaf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = early.Close() })
	setLinkRate(t, "20", "20")
	setLinkRate(t, "20", "20") // the container was started once more
	if rules := mustExec(t, "nft", "list", "ruleset"); strings.Count(rules, "limit rate over 20/second burst 20 packets") != 1 {
		t.Errorf("rules after two starts:\n%s", rules)
	}

	// 20 at once and 20 more in the second after which a client sends its first packet again; then the rest.
	const links = 60
	results := make(chan []time.Duration, 1)
	go func() { results <- dialAtOnce(t, links, leaf, websocket) }()
	for _, took := range dialAtOnce(t, links, client) {
		if took > retransmission {
			t.Errorf("a client waited for %v", took)
		}
	}
	if err := echoOnce(early); err != nil {
		t.Errorf("the link that was there: %v", err)
	}
	took := <-results
	slices.Sort(took)
	soon, _ := slices.BinarySearch(took, retransmission)
	if soon < 15 || soon > 45 {
		t.Errorf("%d of %d links were made at once, want about 20: %v", soon, links, took)
	}
}

// retransmission is shortly before a client sends its first packet again.
const retransmission = 900 * time.Millisecond

// dialAtOnce connects many times at the same time, to the addresses in turn, and returns how long each took. Every one must succeed.
func dialAtOnce(t *testing.T, count int, addresses ...string) []time.Duration {
	t.Helper()
	dialer := net.Dialer{Timeout: 30 * time.Second}
	took := make([]time.Duration, count)
	var all sync.WaitGroup
	for i := range count {
		all.Go(func() {
			began := time.Now()
			c, err := dialer.DialContext(t.Context(), "tcp", addresses[i%len(addresses)])
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
				return
			}
			took[i] = time.Since(began)
			if err := errors.Join(echoOnce(c), c.Close()); err != nil {
				t.Errorf("connection %d: %v", i, err)
			}
		})
	}
	all.Wait()
	return took
}

// serveEcho answers each byte with itself until the test ends.
func serveEcho(t *testing.T, address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				for buffer := make([]byte, 1); ; {
					if _, err := c.Read(buffer); err != nil {
						return
					}
					if _, err := c.Write(buffer); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		all.Wait()
	})
}

func echoOnce(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 1))
	return err
}

// TestLinkRate_IsAddedByKustomize renders the example of docs/operations/install.md with kubectl: the servers keep what they have, and get
// the container with the values of the example. Without the component there is none.
func TestLinkRate_IsAddedByKustomize(t *testing.T) {
	programs, err := toolchain.Find(t.Context(), toolchain.Request{Kube: true})
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "kube") {
			t.Fatalf("REQUIRE names kube: %v", err)
		}
		t.Skipf("no kubectl: %v", err)
	}
	kubectl := filepath.Join(filepath.Dir(programs.Kube), "kubectl")
	plain := renderHub(t, kubectl, "deploy/cloud")
	if n := len(plain.InitContainers); n != 0 {
		t.Errorf("deploy/cloud has %d init containers", n)
	}
	spec := renderHub(t, kubectl, writeLinkRateExample(t))
	if len(spec.InitContainers) != 1 || len(spec.Containers) != len(plain.Containers) || len(spec.Volumes) != len(plain.Volumes) {
		t.Fatalf("rendered %+v", spec)
	}
	c := spec.InitContainers[0]
	values := map[string]string{}
	for _, v := range c.Env {
		values[v.Name] = v.Value
	}
	if c.Image != "registry.example.com/nft:v1" || values["RATE"] != "200" || values["BURST"] != "400" || len(c.Args) != 1 || c.SecurityContext == nil {
		t.Fatalf("rendered %+v", c)
	}
	if !slices.Contains(c.SecurityContext.Capabilities.Add, "NET_ADMIN") || spec.Containers[0].SecurityContext.Capabilities.Add != nil {
		t.Errorf("rights %+v, of nats-server %+v", c.SecurityContext, spec.Containers[0].SecurityContext)
	}
}

// writeLinkRateExample writes the kustomization of docs/operations/install.md into a folder and returns it.
func writeLinkRateExample(t *testing.T) string {
	t.Helper()
	_, section, _ := strings.Cut(read(t, "docs/operations/install.md"), "\n## When many gateways return at once\n")
	_, example, _ := strings.Cut(section, "```yaml\n")
	example, _, found := strings.Cut(example, "```")
	if !found {
		t.Fatal("the page has no example")
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("deploy")
	if err != nil {
		t.Fatal(err)
	}
	deploy, err := filepath.Rel(dir, here) // kustomize takes no absolute names
	if err != nil {
		t.Fatal(err)
	}
	example = strings.ReplaceAll(example, "../../deploy", deploy)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// renderHub returns the pods of the hub's StatefulSet.
func renderHub(t *testing.T, kubectl, dir string) corev1.PodSpec {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), kubectl, "kustomize", dir)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl kustomize: %v\n%s", err, errs.String())
	}
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096); ; {
		var set appsv1.StatefulSet
		if err := decoder.Decode(&set); err != nil {
			t.Fatal(fmt.Errorf("no StatefulSet: %w", err))
		}
		if set.Kind == "StatefulSet" {
			return set.Spec.Template.Spec
		}
	}
}
