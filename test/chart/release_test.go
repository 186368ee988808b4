package chart_test

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// TestChart_Release installs, upgrades, rolls back and uninstalls the chart in a namespace that enforces restricted pods.
func TestChart_Release(t *testing.T) {
	h := newHelm(t)
	bare := &kubetest.Shared{} // nothing was ever installed there
	t.Cleanup(bare.Cleanup)
	cluster := bare.Cluster(t)
	client := cluster.Client(t)
	h.kubeconfig = writeKubeconfig(t, cluster.Config())
	createRestrictedNamespace(t, client)

	refused := func(want string, args ...string) {
		t.Helper()
		_, faults, err := h.run(t.Context(), append([]string{"install", "frond", chartDir, "--namespace", namespace}, args...)...)
		if err == nil || !strings.Contains(faults, want) {
			t.Errorf("helm install %v: got %v, %s; want a refusal with %q", args, err, faults, want)
		}
		sets, err := client.AppsV1().StatefulSets(namespace).List(t.Context(), metav1.ListOptions{})
		kit.Must(t, err)
		if len(sets.Items) != 0 {
			t.Errorf("a refused install left %d StatefulSets", len(sets.Items))
		}
	}
	refused("run frond init")
	options := install.Options{Settings: install.Settings{HubURLs: []string{"tls://hub.example.com:7422"}}}
	_, err := install.Init(t.Context(), cluster.Config(), options, time.Now())
	kit.Must(t, err)
	refused("frond init made keys for 3", "--set", "hub.servers=5")

	out, warnings, err := h.run(t.Context(), "install", "frond", chartDir, "--namespace", namespace)
	if err != nil || warnings != "" {
		t.Fatalf("helm install: %v\n%s", err, warnings) // a warning is one of Pod Security
	}
	for _, want := range []string{"frond token create --print-join-command", "frond backup create", "rollout status statefulset/frond-hub deployment/cloudcore"} {
		if !strings.Contains(out, want) {
			t.Errorf("the notes lack %q:\n%s", want, out)
		}
	}
	first := readRelease(t, client)
	if first.cloudcoreDigest == "" || first.hubDigest == "" || first.replicas != 2 {
		t.Errorf("installed: %+v", first)
	}

	setConfiguration(t, client, "logLevel: debug\n")
	h.mustRun(t, "upgrade", "frond", chartDir, "--namespace", namespace, "--set", "cloudcore.replicas=3")
	second := readRelease(t, client)
	if second.replicas != 3 || second.cloudcoreDigest == first.cloudcoreDigest {
		t.Errorf("another configuration and 3 replicas: %+v, before %+v", second, first)
	}
	if second.hubDigest != first.hubDigest {
		t.Errorf("the hub restarts for a configuration of cloudcore: %+v, before %+v", second, first)
	}
	h.mustRun(t, "rollback", "frond", "1", "--namespace", namespace)
	if third := readRelease(t, client); third != first {
		t.Errorf("rolled back: %+v, installed was %+v", third, first)
	}

	t.Run("renewal", func(t *testing.T) { renewCertificates(t, h, cluster) })
	h.mustRun(t, "uninstall", "frond", "--namespace", namespace)
	expectUninstalled(t, client)
	t.Run("takes manifests over", func(t *testing.T) { takeManifestsOver(t, h, client) })
}

// renewCertificates does what the CronJob does, with its rights and no others, when certificates are due and one Secret is missing.
func renewCertificates(t *testing.T, h helm, cluster *kubetest.Cluster) {
	t.Helper()
	args := []string{"upgrade", "frond", chartDir, "--namespace", namespace, "--set", "renewal.enabled=true"}
	if _, warnings, err := h.run(t.Context(), args...); err != nil || warnings != "" {
		t.Fatalf("helm upgrade: %v\n%s", err, warnings)
	}
	client := cluster.Client(t)
	before, err := client.CoreV1().Secrets(namespace).Get(t.Context(), "frond-cloudcore", metav1.GetOptions{})
	kit.Must(t, err)
	job := cluster.ConfigFor("system:serviceaccount:"+namespace+":frond-renewal", "system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")
	year := time.Now().Add(365 * 24 * time.Hour)
	report, err := install.Init(t.Context(), job, install.Options{KeysOnly: true}, year)
	kit.Must(t, err)
	for _, o := range report.Objects {
		if o.Kind != "Secret" && o.Kind != "ConfigMap" {
			t.Errorf("the job touches %+v", o)
		}
	}
	after, err := client.CoreV1().Secrets(namespace).Get(t.Context(), "frond-cloudcore", metav1.GetOptions{})
	kit.Must(t, err)
	if bytes.Equal(before.Data["tls.crt"], after.Data["tls.crt"]) || !bytes.Equal(before.Data["hub.nk"], after.Data["hub.nk"]) {
		t.Error("a year later the certificate is the same, or the key of a user is not")
	}
	if _, err := install.Init(t.Context(), job, install.Options{}, year); !strings.Contains(fmt.Sprint(err), "forbidden") {
		t.Errorf("without --keys-only the job is not refused: %v", err)
	}
}

// takeManifestsOver changes from kubectl apply -k deploy/cloud to the chart, as docs/operations/helm.md says.
func takeManifestsOver(t *testing.T, h helm, client kubernetes.Interface) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), h.kubectl, "--kubeconfig", h.kubeconfig, "apply", "--server-side", "-k", manifestDir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := workloadUIDs(t, client)
	h.mustRun(t, "install", "frond", chartDir, "--namespace", namespace, "--take-ownership", "--force-conflicts")
	if after := workloadUIDs(t, client); after != before {
		t.Errorf("the workloads were made anew: %v, before %v", after, before)
	}
	h.mustRun(t, "uninstall", "frond", "--namespace", namespace)
	expectUninstalled(t, client)
}

func workloadUIDs(t *testing.T, client kubernetes.Interface) [2]types.UID {
	t.Helper()
	hub, err := client.AppsV1().StatefulSets(namespace).Get(t.Context(), "frond-hub", metav1.GetOptions{})
	kit.Must(t, err)
	deployment, err := client.AppsV1().Deployments(namespace).Get(t.Context(), "cloudcore", metav1.GetOptions{})
	kit.Must(t, err)
	return [2]types.UID{hub.UID, deployment.UID}
}

func writeKubeconfig(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	file := clientcmdapi.NewConfig()
	file.Clusters["c"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	file.AuthInfos["c"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	file.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	file.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	kit.Must(t, clientcmd.WriteToFile(*file, path))
	return path
}

func createRestrictedNamespace(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted",
	}}}
	_, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	kit.Must(t, err)
}

// setConfiguration replaces cloudcore's configuration, as an administrator does.
func setConfiguration(t *testing.T, client kubernetes.Interface, text string) {
	t.Helper()
	o, err := client.CoreV1().ConfigMaps(namespace).Get(t.Context(), install.CloudcoreName, metav1.GetOptions{})
	kit.Must(t, err)
	o.Data = map[string]string{"cloudcore.yaml": text}
	_, err = client.CoreV1().ConfigMaps(namespace).Update(t.Context(), o, metav1.UpdateOptions{})
	kit.Must(t, err)
}

// release is what the test reads of the installed objects.
type release struct {
	replicas                   int32
	cloudcoreDigest, hubDigest string
}

func readRelease(t *testing.T, client kubernetes.Interface) release {
	t.Helper()
	const digest = "frond.io/files-digest"
	deployment, err := client.AppsV1().Deployments(namespace).Get(t.Context(), "cloudcore", metav1.GetOptions{})
	kit.Must(t, err)
	hub, err := client.AppsV1().StatefulSets(namespace).Get(t.Context(), "frond-hub", metav1.GetOptions{})
	kit.Must(t, err)
	return release{
		replicas: *deployment.Spec.Replicas, cloudcoreDigest: deployment.Spec.Template.Annotations[digest], hubDigest: hub.Spec.Template.Annotations[digest],
	}
}

// expectUninstalled checks that the workloads are gone, and that what frond init made is there.
func expectUninstalled(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	sets, err := client.AppsV1().StatefulSets(namespace).List(ctx, metav1.ListOptions{})
	kit.Must(t, err)
	deployments, err := client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
	kit.Must(t, err)
	if len(sets.Items)+len(deployments.Items) != 0 {
		t.Errorf("uninstalled: %d StatefulSets and %d Deployments are left", len(sets.Items), len(deployments.Items))
	}
	for _, name := range []string{"frond-ca", "frond-hub-0", "frond-hub-1", "frond-hub-2", "frond-cloudcore", "frond-admin"} {
		_, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		kit.Must(t, err)
	}
	_, err = install.ReadSettings(ctx, client)
	kit.Must(t, err)
}
