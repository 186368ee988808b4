package exercise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/plan"
	"github.com/frond-edge/frond/loadtest/swarm/memstore"
)

// maxDetails bounds the objects that a judgement names.
const maxDetails = 10

// Judgement is whether a promise was kept.
type Judgement struct {
	Name string `json:"name"`
	Pass bool   `json:"pass"`
	// Detail is what was found, and what was allowed.
	Detail string `json:"detail"`
}

// judgePhase judges the limits of a phase. Operations must neither be missing nor fail, whatever the limits.
func judgePhase(limits plan.Limits, result Result) []Judgement {
	all := []Judgement{
		{"all operations end", result.Missing == 0, fmt.Sprintf("%d missing of %d", result.Missing, result.Latency.Count+int64(result.Missing))},
		{"no request fails", result.Failed == 0, fmt.Sprintf("%d failed", result.Failed)},
	}
	for _, l := range []struct {
		name  string
		limit time.Duration
		ms    float64
	}{{"p50", limits.P50.Duration, result.Latency.P50}, {"p99", limits.P99.Duration, result.Latency.P99}, {"max", limits.Max.Duration, result.Latency.Max}} {
		if l.limit > 0 {
			took := time.Duration(l.ms * float64(time.Millisecond))
			all = append(all, Judgement{l.name, took <= l.limit, fmt.Sprintf("%s, at most %s", took.Round(time.Millisecond/10), l.limit)})
		}
	}
	if limits.BytesPerLinkHour > 0 {
		found := BytesPerLinkHour(result)
		all = append(all, Judgement{"bytes per link and hour", found <= limits.BytesPerLinkHour, fmt.Sprintf("%.0f, at most %.0f", found, limits.BytesPerLinkHour)})
	}
	return all
}

// BytesPerLinkHour returns what a phase moved on a link, both ways, in an hour.
func BytesPerLinkHour(r Result) float64 {
	if r.Linked == 0 || r.Seconds == 0 {
		return 0
	}
	return float64(r.Sent+r.Received) / float64(r.Linked) / r.Seconds * time.Hour.Seconds()
}

// audit are the differences between the gateways' stores and Kubernetes.
type audit struct{ lost, resurrected []string }

// Audit waits until each gateway has a link and holds what Kubernetes holds for it, and judges what is missing then.
func (r *Runner) Audit(ctx context.Context) ([]Judgement, error) {
	var last audit
	unlinked := 0
	deadline := time.Now().Add(r.plan.Settle.Duration)
	for {
		var err error
		if last, err = r.compare(ctx); err != nil {
			return nil, err
		}
		unlinked = 0
		for _, g := range r.swarm.Gateways() {
			if !g.Linked() {
				unlinked++
			}
		}
		if unlinked+len(last.lost)+len(last.resurrected) == 0 || time.Now().After(deadline) {
			break
		}
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
	count, faults := r.swarm.Faults()
	return []Judgement{
		{"all gateways are linked", unlinked == 0, fmt.Sprintf("%d without a link", unlinked)},
		{"nothing is lost", len(last.lost) == 0, describe(last.lost)},
		{"nothing is resurrected", len(last.resurrected) == 0, describe(last.resurrected)},
		{"no gateway has a fault", count == 0, fmt.Sprintf("%d faults: %v", count, errors.Join(faults...))},
	}, nil
}

func describe(objects []string) string {
	slices.Sort(objects)
	if len(objects) > maxDetails {
		return fmt.Sprintf("%d objects, among them %v", len(objects), objects[:maxDetails])
	}
	return fmt.Sprintf("%d objects %v", len(objects), objects)
}

// compare compares all stores with Kubernetes. A pod must be the same one, a ConfigMap the same version.
func (r *Runner) compare(ctx context.Context) (audit, error) {
	pods, err := r.kube.CoreV1().Pods(r.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return audit{}, fmt.Errorf("list pods: %w", err)
	}
	pages, err := r.kube.CoreV1().ConfigMaps(r.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return audit{}, fmt.Errorf("list ConfigMaps: %w", err)
	}
	wantPods := map[string]map[wire.Key]corev1.Pod{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if wantPods[pod.Spec.NodeName] == nil {
			wantPods[pod.Spec.NodeName] = map[wire.Key]corev1.Pod{}
		}
		wantPods[pod.Spec.NodeName][wire.Key{Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}] = *pod
	}
	versions := map[string]string{}
	for i := range pages.Items {
		versions[pages.Items[i].Name] = pages.Items[i].ResourceVersion
	}
	var found audit
	for _, g := range r.swarm.Gateways() {
		found.comparePods(g.Name(), wantPods[g.Name()], g.Store().Select("", "pods", r.namespace))
		name := configMapName(g.Name())
		held, holds := g.Store().Object(wire.Key{Resource: "configmaps", Namespace: r.namespace, Name: name})
		needed := len(wantPods[g.Name()]) > 0
		switch {
		case needed && (!holds || held.Version != versions[name]):
			found.lost = append(found.lost, fmt.Sprintf("%s: configmap %s at version %q of %q", g.Name(), name, held.Version, versions[name]))
		case !needed && holds:
			found.resurrected = append(found.resurrected, fmt.Sprintf("%s: configmap %s", g.Name(), name))
		}
	}
	return found, nil
}

func (a *audit) comparePods(node string, want map[wire.Key]corev1.Pod, have map[wire.Key]memstore.Object) {
	for key := range want {
		if held, holds := have[key]; !holds || held.UID != string(want[key].UID) {
			a.lost = append(a.lost, node+": "+key.Human())
		}
	}
	for key := range have {
		if _, wanted := want[key]; !wanted {
			a.resurrected = append(a.resurrected, node+": "+key.Human())
		}
	}
}

// Break has the first gateway lose its ConfigMap for good: only for the test that a run finds it.
func (r *Runner) Break() {
	if all := r.swarm.Gateways(); len(all) > 0 {
		all[0].Store().Break(wire.Key{Resource: "configmaps", Namespace: r.namespace, Name: configMapName(all[0].Name())})
	}
}
