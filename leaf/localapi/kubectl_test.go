package localapi_test

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// kubectlRunner is the real kubectl, connected to one API by a listener that adds the caller's identity.
type kubectlRunner struct{ program, server, cache string }

func newKubectl(t *testing.T, cfg *rest.Config) kubectlRunner {
	t.Helper()
	programs, err := toolchain.Find(t.Context(), toolchain.Request{Kube: true})
	if err != nil {
		t.Skipf("no kubectl: %v", err) // kubetest has skipped or failed before
	}
	server := httptest.NewServer(proxyTo(t, cfg))
	t.Cleanup(server.Close)
	return kubectlRunner{program: programs.Kube, server: server.URL, cache: t.TempDir()}
}

func proxyTo(t *testing.T, cfg *rest.Config) http.Handler {
	t.Helper()
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	host, err := url.Parse(cfg.Host)
	if err != nil {
		t.Fatal(err)
	}
	return &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(host) },
	}
}

func (k kubectlRunner) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, k.program, append([]string{"--server", k.server, "--cache-dir", k.cache}, args...)...)
	cmd.Args[0] = "kubectl" // one program with many names
	cmd.Env = append(os.Environ(), "KUBECONFIG="+os.DevNull)
	return cmd
}

// run returns the output and the exit state of a command.
func (k kubectlRunner) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := k.command(t.Context(), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(out) + exit.String() + "\n"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// volatileText matches text in which two servers may differ: versions, ages and what pads their column, their own names in scratch files.
var volatileText = regexp.MustCompile(`(?m)resourceVersion: ".*"|"resourceVersion": ".*"|\b\d+s\b *|/tmp/\S+|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*( \+0000)?`)

// TestKubectl_PrintsLikeAPIServer compares kubectl's output for the gateway with its output for kube-apiserver.
func TestKubectl_PrintsLikeAPIServer(t *testing.T) {
	shared := kubetest.Shared{}
	t.Cleanup(shared.Cleanup)
	apiserver := shared.Cluster(t)
	g := newGateway(t, true)
	g.cloud.goOnline(proxyTo(t, apiserver.Config()).ServeHTTP)
	ns := createObjects(t, apiserver.Client(t), apiserver.Namespace(t), g)
	real, local := newKubectl(t, apiserver.Config()), newKubectl(t, g.api.ClientConfig())
	const conf = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"conf"},"data":{"key":"2"}}`
	for _, command := range []string{
		"get pods",
		"get pods -o wide",
		"get pods -o wide --show-labels --no-headers",
		"get pods --chunk-size=1",
		"get pods --chunk-size=2 -o name",
		"get pods --chunk-size=1 -l app -o name",
		"get pods -l app=web",
		"get pods -l app!=web",
		"get pods -l app=none",
		"get pods --field-selector=status.phase=Running -o name",
		"get pods --field-selector=metadata.name=web,spec.nodeName=edge-1 -o name",
		"get pods --field-selector=spec.nothing=1",
		"get pods --sort-by=.metadata.name -o custom-columns=N:.metadata.name,P:.status.phase",
		"get pods -o jsonpath={.items[*].spec.containers[*].image}",
		"get pod web -o yaml",
		"get pod/web svc/svc cm/conf -o name",
		"get po,svc -o name",
		"get pod none",
		"get pod none --ignore-not-found",
		"get svc -o wide",
		"get cm conf -o json",
		"get node edge-1 -o wide",
		"describe pod web",
		"describe cm conf",
		"wait pod/web --for=jsonpath={.status.phase}=Running",
		"wait pod/web --for=condition=Ready --timeout=20s",
		"apply --server-side --dry-run=server --force-conflicts --validate=false -f -",
		"apply --server-side --dry-run=server --validate=false -f -",
		"apply --server-side --dry-run=server --force-conflicts -f -",
		"apply --server-side --dry-run=server -o yaml -f -",
		"apply --dry-run=server -f -",
		"diff --server-side --force-conflicts -f -",
		"explain pods.spec.containers.resources",
		"explain deployments.spec.strategy",
		"label cm conf a=b --dry-run=server",
		"delete pod web --dry-run=server",
		"auth can-i list secrets",
	} {
		t.Run(command, func(t *testing.T) {
			stdin := ""
			if strings.HasSuffix(command, "-f -") {
				stdin = conf
			}
			if command == "apply --dry-run=server -f -" {
				stdin = strings.Replace(conf, "conf", "unheard", 1)
			}
			args := append([]string{"-n", ns}, strings.Fields(command)...)
			want := volatileText.ReplaceAllString(real.run(t, stdin, args...), "…")
			got := volatileText.ReplaceAllString(local.run(t, stdin, args...), "…")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("kubectl %s (-apiserver +gateway):\n%s", command, diff)
			}
		})
	}
	t.Run("get -w", func(t *testing.T) { kubectlWatches(t, g, local, ns) })
}

// kubectlWatches follows one object with kubectl.
func kubectlWatches(t *testing.T, g *gateway, k kubectlRunner, ns string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := k.command(ctx, "-n", ns, "get", "cm", "-w", "--output-watch-events", "--no-headers", "--field-selector=metadata.name=conf")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	lines := bufio.NewScanner(out)
	changed, err := clientFor(t, g.api.ClientConfig()).CoreV1().ConfigMaps(ns).Get(t.Context(), "conf", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed.Data, changed.ResourceVersion = map[string]string{"key": "changed"}, "999999"
	for _, want := range []string{"ADDED", "MODIFIED", "DELETED"} {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), want+" ") || !strings.Contains(lines.Text(), "conf") {
			t.Fatalf("%q, %v; want %s", lines.Text(), lines.Err(), want)
		}
		switch want {
		case "ADDED":
			g.deliverObjects(changed)
		case "MODIFIED":
			g.deliverTombstone(changed)
		}
	}
}
