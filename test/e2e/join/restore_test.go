package join_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/test/kit"
)

// deletedNamespace deletes the namespace of Frond, with all keys and the hub's streams, and restores it from a backup. A gateway that had
// joined receives changes again, with its existing key.
func (c *bareCluster) deletedNamespace(t *testing.T) {
	t.Helper()
	const node = "pump-10"
	c.addGateway(node, "10.201.0.104", 7422)
	m := c.newMachine(t, node)
	command := strings.TrimSpace(c.runFrond(t, "token", "create", "--node", node, "--print-join-command"))
	if out := m.runShell(t, command+hollowFlag); out.code != 0 {
		t.Fatalf("%s: exit %d, %s%s", command, out.code, out.out, out.stderr)
	}
	before := c.awaitJoined(t, node)
	c.expectPodRuns(t, m, "before")
	passphrase, file := filepath.Join(c.dir, "passphrase"), filepath.Join(c.dir, "frond.backup")
	kit.Must(t, os.WriteFile(passphrase, []byte("correct horse battery staple\n"), 0o600))
	c.runFrond(t, "backup", "create", "--file", file, "--passphrase-file", passphrase)

	c.deleteConfirmed(t)
	for _, p := range c.running { // nothing is left of them, nor of their volumes
		p.stop(t)
		kit.Must(t, os.RemoveAll(filepath.Join(c.dir, p.name, "volumes")))
	}
	if out, err := c.runProgram(t, c.programs.Frond, "token", "create", "--print-join-command"); err == nil || !strings.Contains(err.Error(), "not installed") {
		t.Errorf("with nothing left: %s, %v", out, err)
	}
	c.awaitLinkState(t, node, 0)

	c.runFrond(t, "backup", "restore", "--file", file, "--passphrase-file", passphrase)
	c.runKubectl(t, "apply", "--server-side", "-k", manifestDir)
	for _, p := range c.running {
		c.startPod(t, p)
	}
	c.awaitPodsReady(t)
	c.awaitLinkState(t, node, 1)
	c.expectPodRuns(t, m, "after")
	if diff := cmp.Diff(before, c.awaitJoined(t, node)); diff != "" {
		t.Errorf("it is not the gateway that it was (-before +restored):\n%s", diff)
	}
}

// awaitLinkState waits until a gateway's own metric shows its link up (1) or down (0).
func (c *bareCluster) awaitLinkState(t *testing.T, node string, state int) {
	t.Helper()
	want := fmt.Sprintf("\nfrond_link_up %d\n", state)
	eventually(t, node+" says"+strings.TrimSuffix(want, "\n"), func(ctx context.Context) error {
		metrics, err := c.fetchURL(ctx, node, "http://127.0.0.1:10281/metrics", nil)
		if err == nil && !strings.Contains(metrics, want) {
			return errors.New("it does not")
		}
		return err
	})
}

// deleteConfirmed deletes the namespace as an administrator does: kubectl's error says what to confirm, and how.
func (c *bareCluster) deleteConfirmed(t *testing.T) {
	t.Helper()
	out, err := c.runProgram(t, c.kubectlProgram(), "delete", "namespace", namespace)
	if err == nil {
		t.Fatalf("it was deleted without a confirmation: %s", out)
	}
	command := regexp.MustCompile(`kubectl annotate \S+ \S+ \S+`).FindString(err.Error())
	if command == "" {
		t.Fatalf("it does not say how to confirm: %v", err)
	}
	c.runKubectl(t, strings.Fields(command)[1:]...)
	c.runKubectl(t, "delete", "namespace", namespace) // waits until it is gone
}

// expectPodRuns runs a pod on a gateway, which requires that the cloud's change and the gateway's report arrive.
func (c *bareCluster) expectPodRuns(t *testing.T, m *machine, name string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			out := m.runShell(t, "frond edge get pods; frond edge describe pod "+name)
			t.Logf("on the gateway: %s%s", out.out, out.stderr)
		}
	}()
	no := false
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: m.name, AutomountServiceAccountToken: &no, Containers: []corev1.Container{{Name: "c", Image: "pause"}},
	}}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, _ = c.kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(t.Context(), account, metav1.CreateOptions{}) // exists in the second call
	_, err := c.kube.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{})
	kit.Must(t, err)
	eventually(t, "pod "+name+" runs", func(ctx context.Context) error {
		now, err := c.kube.CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("its status is %+v", now.Status)
		}
		return err
	})
}
