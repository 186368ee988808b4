package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/internal/install/pki"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// sharedCluster is the control plane of the tests of commands that need nothing more.
var sharedCluster = kubetest.Shared{Options: kubetest.Options{Controllers: []string{"namespace-controller"}}}

func TestMain(m *testing.M) {
	code := m.Run()
	sharedCluster.Cleanup()
	os.Exit(code)
}

// kubeconfigOf writes a kubeconfig.
func kubeconfigOf(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos["c"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	c.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	c.CurrentContext = "c"
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// installedCluster runs commands against the cluster of all tests, without the objects of earlier tests.
type installedCluster struct {
	t      *testing.T
	client kubernetes.Interface
	file   string
}

func newInstalledCluster(t *testing.T) *installedCluster {
	t.Helper()
	c := sharedCluster.Cluster(t)
	i := &installedCluster{t: t, client: c.Client(t), file: kubeconfigOf(t, c.Config())}
	i.clearNamespace()
	return i
}

// clearNamespace deletes the objects but leaves the namespace, whose deletion takes long.
func (i *installedCluster) clearNamespace() {
	i.t.Helper()
	ctx, all := i.t.Context(), metav1.ListOptions{}
	i.confirmAll()
	for _, err := range []error{
		i.client.CoreV1().Secrets(names.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		i.client.CoreV1().ConfigMaps(names.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
		i.client.CoreV1().Secrets(identity.TokenNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
	} {
		if err != nil {
			i.t.Fatal(err)
		}
	}
}

// confirmAll allows the deletion of all objects of the namespace, as the policies of an earlier test may be in force.
func (i *installedCluster) confirmAll() {
	i.t.Helper()
	for _, resource := range []string{"secrets", "configmaps"} {
		list, err := i.dynamicResource(resource, names.Namespace).List(i.t.Context(), metav1.ListOptions{})
		if err != nil {
			i.t.Fatal(err)
		}
		for _, o := range list.Items {
			i.confirmDeletion(resource, names.Namespace, o.GetName(), o.GetName())
		}
	}
}

// dynamicResource returns the client of a resource, by kubectl's name for it.
func (i *installedCluster) dynamicResource(name, ns string) dynamic.ResourceInterface {
	i.t.Helper()
	client, err := dynamic.NewForConfig(sharedCluster.Cluster(i.t).Config())
	if err != nil {
		i.t.Fatal(err)
	}
	gvr := schema.ParseGroupResource(name).WithVersion("v1")
	if gvr.Group == identity.Group {
		gvr.Version = identity.Version
	}
	if ns == "" {
		return client.Resource(gvr)
	}
	return client.Resource(gvr).Namespace(ns)
}

// confirmDeletion sets the annotation that a deletion requires; "" removes it.
func (i *installedCluster) confirmDeletion(resource, ns, name, value string) {
	i.t.Helper()
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{names.AnnotationConfirmDeletion: value}}})
	if value == "" {
		text, err = fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, names.AnnotationConfirmDeletion), nil
	}
	if err != nil {
		i.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(i.t.Context()), 30*time.Second)
	defer cancel()
	if _, err := i.dynamicResource(resource, ns).Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		i.t.Fatal(err)
	}
}

// mustRun runs a command that must succeed, and returns its output.
func (i *installedCluster) mustRun(args ...string) string {
	i.t.Helper()
	code, out, errs := i.runCommand(args...)
	if code != 0 {
		i.t.Fatalf("frond %s: code %d, %s", strings.Join(args, " "), code, errs)
	}
	return out
}

func (i *installedCluster) runCommand(args ...string) (code int, out, errs string) {
	return runFrond(append(args, "--kubeconfig", i.file)...)
}

// secretFiles returns all entries of all Secrets of the namespace.
func (i *installedCluster) secretFiles() install.Files {
	i.t.Helper()
	list, err := i.client.CoreV1().Secrets(names.Namespace).List(i.t.Context(), metav1.ListOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	files := install.Files{}
	for _, o := range list.Items {
		for entry, data := range o.Data {
			files[o.Name+"/"+entry] = data
		}
	}
	return files
}

// objectVersions returns the resourceVersions of all objects of frond init.
func (i *installedCluster) objectVersions() map[string]string {
	i.t.Helper()
	versions := map[string]string{}
	secrets, err := i.client.CoreV1().Secrets(names.Namespace).List(i.t.Context(), metav1.ListOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	for _, o := range secrets.Items {
		versions["secret "+o.Name] = o.ResourceVersion
	}
	maps, err := i.client.CoreV1().ConfigMaps(names.Namespace).List(i.t.Context(), metav1.ListOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	for _, o := range maps.Items {
		versions["configmap "+o.Name] = o.ResourceVersion
	}
	ns, err := i.client.CoreV1().Namespaces().Get(i.t.Context(), names.Namespace, metav1.GetOptions{})
	if err != nil {
		i.t.Fatal(err)
	}
	versions["namespace"] = ns.ResourceVersion
	return versions
}

// parseReport parses the output of frond init -o json.
func parseReport(t *testing.T, out string) install.Report {
	t.Helper()
	var r install.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("understand %q: %v", out, err)
	}
	return r
}

func changedFiles(a, b install.Files) []string {
	var names []string
	for name := range maps.Keys(b) {
		if string(a[name]) != string(b[name]) {
			names = append(names, name)
		}
	}
	return names
}

func TestInit_SecondRunChangesNothing(t *testing.T) {
	i := newInstalledCluster(t)
	if out := i.mustRun("init", "--dry-run"); !strings.Contains(out, "would be written; nothing was") {
		t.Errorf("dry run prints %s", out)
	}
	if files := i.secretFiles(); len(files) > 0 {
		t.Fatalf("a dry run wrote %d files", len(files))
	}
	first := parseReport(t, i.mustRun("init", "--hub-servers", "1", "--hub-url", "tls://hub.example.com:7422", "-o", "json"))
	if first.Changed() == 0 || !strings.HasPrefix(first.CAHash, "sha256:") || first.Cells != install.DefaultCells || len(first.Warnings) > 0 {
		t.Errorf("the first run reports %+v", first)
	}
	files, versions := i.secretFiles(), i.objectVersions()
	if out := i.mustRun("init"); !strings.Contains(out, "nothing to change") || strings.Contains(out, "created") || strings.Contains(out, "configured") {
		t.Errorf("the second run prints %s", out)
	}
	if out := i.mustRun("init", "--dry-run"); !strings.Contains(out, "nothing to change") {
		t.Errorf("a dry run then prints %s", out)
	}
	if diff := cmp.Diff(versions, i.objectVersions()); diff != "" {
		t.Errorf("the second run wrote (-before +after):\n%s", diff)
	}
	second := parseReport(t, i.mustRun("init", "--hub-url", "tls://hub.example.org:7422", "-o", "json"))
	if second.CAHash != first.CAHash || second.HubServers != 1 {
		t.Errorf("another address changed more: %+v", second)
	}
	if diff := cmp.Diff([]string{"frond-hub-0/tls.crt"}, changedFiles(files, i.secretFiles())); diff != "" {
		t.Errorf("another address changed (-want +got):\n%s", diff)
	}
	for _, tt := range [][]string{{"--cells", "4"}, {"--hub-servers", "2"}, {"--hub-url", "hub:1"}} {
		if code, _, errs := i.runCommand(append([]string{"init"}, tt...)...); code != 1 || !strings.Contains(errs, tt[0]) {
			t.Errorf("%v: code %d, %s", tt, code, errs)
		}
	}
}

// A planned fleet is told what it needs, and decides what was not decided before.
func TestInit_PlansForNodes(t *testing.T) {
	i := newInstalledCluster(t)
	first := parseReport(t, i.mustRun("init", "--nodes", "50000", "--hub-servers", "1", "--hub-url", "tls://hub.example.com:7422", "-o", "json"))
	if first.Cells != 200 || first.HubServers != 1 || first.Plan == nil || first.Plan.Hub.MemoryMiB <= 1024 {
		t.Errorf("cells %d, servers %d, plan %+v", first.Cells, first.HubServers, first.Plan)
	}
	out := i.mustRun("init")
	for _, want := range []string{"for 50000 gateways", "nats-server", "extrapolated", "nothing to change"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	if code, _, errs := i.runCommand("init", "--nodes", "100001"); code != 1 || !strings.Contains(errs, "--nodes") {
		t.Errorf("too many gateways: code %d, %s", code, errs)
	}
}

// TestInit_TaintGateways follows the setting to the printed join command.
func TestInit_TaintGateways(t *testing.T) {
	i := newInstalledCluster(t)
	const taint = " --taint node-role.kubernetes.io/edge:NoSchedule"
	for _, tt := range []struct {
		flag string
		want bool
	}{{"--hub-servers=1", false}, {"--taint-gateways", true}, {"--cells=64", true}, {"--taint-gateways=false", false}} {
		i.mustRun("init", "--hub-url", "tls://hub.example.com:7422", tt.flag)
		if command := i.mustRun("token", "create", "--node", "gw-1", "--print-join-command"); strings.Contains(command, taint) != tt.want || !strings.Contains(command, "--node-name gw-1") {
			t.Errorf("after frond init %s: %s", tt.flag, command)
		}
		if out := i.mustRun("init"); !strings.Contains(out, "nothing to change") {
			t.Errorf("frond init %s is not kept: %s", tt.flag, out)
		}
	}
}

// A cluster with an untested version of Kubernetes is installed all the same, with a warning.
func TestInit_WarnsOfAnUntestedKubernetes(t *testing.T) {
	i := newInstalledCluster(t)
	if r := parseReport(t, i.mustRun("init", "--dry-run", "--hub-url", "tls://hub.example.com:7422", "-o", "json")); slices.ContainsFunc(r.Warnings, aboutVersion) {
		t.Errorf("warns of the version that is tested: %q", r.Warnings)
	}
	config := sharedCluster.Cluster(t).Config()
	target, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	if proxy.Transport, err = rest.TransportFor(config); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"major": "1", "minor": "30", "gitVersion": "v1.30.2"}`)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer server.Close()
	i.file = kubeconfigOf(t, &rest.Config{Host: server.URL})
	r := parseReport(t, i.mustRun("init", "--dry-run", "--hub-url", "tls://hub.example.com:7422", "-o", "json"))
	if !slices.ContainsFunc(r.Warnings, aboutVersion) {
		t.Errorf("no warning of Kubernetes 1.30: %q", r.Warnings)
	}
}

func aboutVersion(warning string) bool {
	return strings.Contains(warning, "Frond is tested with Kubernetes")
}

func TestInit_CompletesPartialInstallation(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init", "--hub-servers", "3")
	whole := i.secretFiles()
	secrets := i.client.CoreV1().Secrets(names.Namespace)
	i.confirmAll()
	if err := secrets.Delete(t.Context(), install.FolderHub(1), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := i.client.CoreV1().ConfigMaps(names.Namespace).Delete(t.Context(), install.SettingsName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cloudcore, err := secrets.Get(t.Context(), install.FolderCloudcore, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(cloudcore.Data, install.EntryKey)
	if _, err := secrets.Update(t.Context(), cloudcore, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	i.mustRun("init")
	now := i.secretFiles()
	if len(now) != len(whole) {
		t.Errorf("%d files, want %d", len(now), len(whole))
	}
	for _, name := range changedFiles(whole, now) {
		if !strings.HasPrefix(name, "frond-hub-1/tls.") && !strings.HasPrefix(name, "frond-cloudcore/tls.") {
			t.Errorf("%s was there, and is another one now", name)
		}
	}
	cloudcore.Data[install.EntryHubSeed], cloudcore.ResourceVersion = []byte("torn"), ""
	if _, err := secrets.Update(t.Context(), cloudcore, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := i.runCommand("init"); code != 1 || !strings.Contains(errs, "frond-cloudcore/hub.nk") || !strings.Contains(errs, "backup") {
		t.Errorf("a torn key: code %d, %s", code, errs)
	}
	if got := string(i.secretFiles()["frond-cloudcore/hub.nk"]); got != "torn" {
		t.Error("a key that cannot be read was replaced")
	}
}

// TestInit_ConcurrentRunsAgree runs several at once: all of them succeed, and the resulting files match each other.
func TestInit_ConcurrentRunsAgree(t *testing.T) {
	i := newInstalledCluster(t)
	const many = 4
	var hashes [many]string
	var faults [many]string
	var wg sync.WaitGroup
	for n := range many {
		wg.Go(func() {
			code, out, errs := i.runCommand("init", "--hub-servers", "3", "-o", "json")
			if code != 0 {
				faults[n] = fmt.Sprintf("code %d, %s", code, errs)
				return
			}
			var r install.Report
			_ = json.Unmarshal([]byte(out), &r) // an empty hash fails below
			hashes[n] = r.CAHash
		})
	}
	wg.Wait()
	files := i.secretFiles()
	hash, err := pki.CAHash(files["frond-ca/ca.crt"])
	if err != nil {
		t.Fatal(err)
	}
	for n := range many {
		if faults[n] != "" || hashes[n] != hash {
			t.Errorf("run %d: %s; authority %s, want %s", n, faults[n], hashes[n], hash)
		}
	}
	settings, err := install.ReadSettings(t.Context(), i.client)
	if err != nil || settings.CAHash != hash {
		t.Errorf("settings %+v, %v", settings, err)
	}
	versions := i.objectVersions()
	if out := i.mustRun("init"); !strings.Contains(out, "nothing to change") {
		t.Errorf("they left something to do: %s", out)
	}
	if diff := cmp.Diff(versions, i.objectVersions()); diff != "" {
		t.Errorf("another run wrote (-before +after):\n%s", diff)
	}
}
