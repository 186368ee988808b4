package suite_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/test/faults"
)

// objectVersions is the state of the workload's objects on one node in one place: the UID and, except for pods, the version of each. The
// version of a pod changes with its status, which the node owns.
type objectVersions map[wire.Key]string

func versionEntry(key wire.Key, uid, version string) string {
	if key.Resource == "pods" {
		return uid
	}
	return uid + " version " + version
}

// findDisagreement describes the differences between Kubernetes, the hub and the gateways in the workload's objects, "" for none.
func (r *testCluster) findDisagreement(ctx context.Context) string {
	api, missing := r.inKubernetes(ctx)
	if missing != "" {
		return missing
	}
	for _, node := range nodes {
		stored, err := r.inStore(ctx, node)
		if err != nil {
			return err.Error()
		}
		if diff := diffVersions("Kubernetes", api[node], "the gateway", stored); diff != "" {
			return node + ": " + diff
		}
		held, err := r.inStream(ctx, node)
		if err != nil {
			return err.Error()
		}
		if diff := diffVersions("Kubernetes", api[node], "the hub", held); diff != "" {
			return node + ": " + diff
		}
	}
	return ""
}

// diffVersions lists the differences between two places.
func diffVersions(here string, a objectVersions, there string, b objectVersions) string {
	var diff []string
	for _, key := range slices.SortedFunc(maps.Keys(a), func(x, y wire.Key) int { return strings.Compare(x.String(), y.String()) }) {
		if b[key] != a[key] {
			diff = append(diff, fmt.Sprintf("%s is %q in %s and %q in %s", key.Human(), a[key], here, b[key], there))
		}
	}
	for key := range b {
		if _, known := a[key]; !known {
			diff = append(diff, fmt.Sprintf("%s is %q in %s and not in %s", key.Human(), b[key], there, here))
		}
	}
	return strings.Join(diff, "; ")
}

// inKubernetes reads the state in Kubernetes, and describes what is not settled: a pod that does not run, or a node that is not ready.
func (r *testCluster) inKubernetes(ctx context.Context) (map[string]objectVersions, string) {
	all := map[string]objectVersions{}
	for _, node := range nodes {
		all[node] = objectVersions{}
	}
	put := func(resource string, o metav1.Object) {
		node := strings.Join(strings.SplitN(o.GetName(), "-", 3)[:min(2, strings.Count(o.GetName(), "-")+1)], "-")
		if s := all[node]; s != nil {
			key := wire.Key{Resource: resource, Namespace: faults.Namespace, Name: o.GetName()}
			s[key] = versionEntry(key, string(o.GetUID()), o.GetResourceVersion())
		}
	}
	configMaps, err := r.kube.CoreV1().ConfigMaps(faults.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err.Error()
	}
	for i := range configMaps.Items {
		put("configmaps", &configMaps.Items[i])
	}
	secrets, err := r.kube.CoreV1().Secrets(faults.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err.Error()
	}
	for i := range secrets.Items {
		put("secrets", &secrets.Items[i])
	}
	pods, err := r.kube.CoreV1().Pods(faults.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err.Error()
	}
	var unsettled []string
	for i := range pods.Items {
		p := &pods.Items[i]
		put("pods", p)
		if p.DeletionTimestamp != nil || !podReady(p) {
			unsettled = append(unsettled, podProgress(p))
		}
	}
	return all, strings.Join(unsettled, "; ")
}

// podProgress describes how far a pod is: scheduled, first reported by its gateway, containers running.
func podProgress(p *corev1.Pod) string {
	says := fmt.Sprintf("pod %s made %s is %s", p.Name, p.CreationTimestamp.Format(time.TimeOnly), p.Status.Phase)
	if p.DeletionTimestamp != nil {
		says += ", to be gone by " + p.DeletionTimestamp.Format(time.TimeOnly)
	}
	switch {
	case p.Spec.NodeName == "":
		says += ", on no node"
		for _, c := range p.Status.Conditions {
			says += fmt.Sprintf(" (%s since %s: %s)", c.Reason, c.LastTransitionTime.Format(time.TimeOnly), c.Message)
		}
	case len(p.Status.ContainerStatuses) == 0:
		says += ", its gateway has said nothing of it"
	}
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil:
			says += ", container waits: " + c.State.Waiting.Reason
		case c.State.Terminated != nil:
			says += ", container ended " + c.State.Terminated.FinishedAt.Format(time.TimeOnly)
		case c.State.Running != nil:
			says += ", container runs since " + c.State.Running.StartedAt.Format(time.TimeOnly)
		}
	}
	return says
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.Status.Phase == corev1.PodRunning
		}
	}
	return false
}

// isWorkloadKey reports whether the workload made a key.
func isWorkloadKey(key wire.Key) bool {
	return key.Namespace == faults.Namespace && strings.HasPrefix(key.Name, "edge-")
}

func (r *testCluster) inStore(ctx context.Context, node string) (objectVersions, error) {
	var stored devcluster.StoreContents
	err := r.withCluster(func(c *devcluster.Cluster) error {
		var err error
		stored, err = c.Store(ctx, node)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the store of %s: %w", node, err)
	}
	s := objectVersions{}
	for _, o := range stored.Objects {
		if isWorkloadKey(o.Key()) {
			s[o.Key()] = versionEntry(o.Key(), o.UID, o.Version)
		}
	}
	return s, nil
}

// inStream reads the objects in the hub's stream for a node. Tombstones do not count: they stay for a while after they were acked.
func (r *testCluster) inStream(ctx context.Context, node string) (objectVersions, error) {
	held, err := r.publisher.Held(ctx, node)
	if err != nil {
		return nil, err
	}
	s := objectVersions{}
	for key, m := range held {
		if isWorkloadKey(key) && m.Op == wire.Apply {
			s[key] = versionEntry(key, m.UID, m.Version)
		}
	}
	return s, nil
}

// evidenceTimeout bounds the requests of keepEvidence.
const evidenceTimeout = 20 * time.Second

// keepEvidence copies logs and histories of a failed run, and records the present state.
func (r *testCluster) keepEvidence(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	args := []string{"-r", r.cluster.Dir() + "/logs"}
	args = append(args, "--target-directory="+dir)
	for _, node := range nodes {
		history := filepath.Join(dir, node+".history")
		if data, err := os.ReadFile(r.cluster.History(node)); err == nil {
			if err := os.WriteFile(history, data, 0o600); err != nil {
				return err
			}
		}
	}
	if out, err := exec.CommandContext(ctx, "cp", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
	defer cancel()
	notes := map[string]func() (string, error){
		"pods.yaml": func() (string, error) {
			return r.cluster.Kubectl(ctx, "", "get", "pods,nodes,configmaps,secrets", "-n", faults.Namespace, "-o", "yaml")
		},
		"agreement": func() (string, error) { return r.findDisagreement(ctx), nil },
	}
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		notes[part+".metrics"] = func() (string, error) { return r.cluster.CloudMetrics(ctx, part) }
	}
	for _, node := range nodes {
		notes[node+".metrics"] = func() (string, error) { return r.cluster.EdgeMetrics(ctx, node) }
	}
	for name, note := range notes {
		text, err := note()
		if err != nil {
			text += "\n" + err.Error()
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
