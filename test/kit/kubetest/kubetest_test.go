package kubetest_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared = kubetest.Shared{Options: kubetest.Options{
	Controllers: []string{"serviceaccount-controller", "root-ca-certificate-publisher-controller"}, Scheduler: true,
}}

func TestMain(m *testing.M) { shared.Verify(m) }

func TestCluster_ControllersAndSchedulerRun(t *testing.T) {
	c := shared.Cluster(t)
	client, ns := c.Client(t), c.Namespace(t)
	kit.Succeeds(t, 30*time.Second, func() error {
		_, err := client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = client.CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		return err
	})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ns + "-1"}}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "c", Image: "i"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if _, err := client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, 30*time.Second, func() error {
		got, err := client.CoreV1().Pods(ns).Get(t.Context(), "a", metav1.GetOptions{})
		if err == nil && got.Spec.NodeName == "" {
			return errors.New("not bound")
		}
		return err
	})
}

func TestCluster_AuditsAndAuthorizes(t *testing.T) {
	c := shared.Cluster(t)
	before := time.Now()
	client, err := kubernetes.NewForConfig(c.ConfigFor("nobody"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Get(t.Context(), "x", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("a user without rights: %v", err)
	}
	kit.Succeeds(t, 10*time.Second, func() error {
		got := c.Audit(t, before, func(r kubetest.AuditEntry) bool { return r.User.Username == "nobody" })
		if len(got) != 1 || got[0].Response.Code != 403 || !strings.HasSuffix(got[0].URI, "/secrets/x") {
			return errors.New("request not in the audit log")
		}
		return nil
	})
}
