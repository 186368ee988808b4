package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// manyConfigMaps is a pod on one gateway that mounts n ConfigMaps called <name>-<i>.
func manyConfigMaps(name, edge string, n int) string {
	var maps, sources strings.Builder
	for i := range n {
		fmt.Fprintf(&maps, "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s-%d}\ndata: {v: \"0\"}\n", name, i)
		fmt.Fprintf(&sources, "      - configMap: {name: %s-%d, items: [{key: v, path: v%d}]}\n", name, i, i)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "36000"], volumeMounts: [{name: all, mountPath: /all}]}
  volumes:
  - name: all
    projected:
      sources:
%[3]s%[4]s`, name, edge, sources.String(), maps.String())
}

// setConfigMap changes one ConfigMap through the apiserver.
func setConfigMap(ctx context.Context, kube kubernetes.Interface, name, value string) error {
	patch := fmt.Appendf(nil, `{"data":{"v":%q}}`, value)
	_, err := kube.CoreV1().ConfigMaps("default").Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// awaitValue waits until gateways hold a value.
func awaitValue(t *testing.T, name, value string, edges ...string) {
	t.Helper()
	eventually(t, name+" is "+value+" at "+strings.Join(edges, " and "), func(ctx context.Context) string {
		for _, edge := range edges {
			if got := storedData(ctx, edge, name, "v"); got != value {
				return edge + " holds " + got
			}
		}
		return ""
	})
}

func mustMetric(t *testing.T, part, name string, labels ...string) float64 {
	t.Helper()
	v, err := shared.Metric(t.Context(), part, name, labels...)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestLinkCut_DeliversLastStateOnce(t *testing.T) {
	const objects, rounds = 20, 10
	applyManifest(t, manyConfigMaps("cut", "edge-1", objects))
	before := containerRuns(awaitRunning(t, "app=cut", 1))
	for i := range objects {
		awaitValue(t, fmt.Sprintf("cut-%d", i), "0", "edge-1")
	}
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	for round := range rounds {
		for i := range objects {
			if err := setConfigMap(t.Context(), sharedKube, fmt.Sprintf("cut-%d", i), strconv.Itoa(round+1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	delivered := mustMetric(t, "edge-1", "frond_delivered_total")
	eventually(t, "edge-1 has found its link dead", func(ctx context.Context) string {
		if up, err := shared.Metric(ctx, "edge-1", "frond_link_up"); err != nil || up != 0 {
			return fmt.Sprint(up, err)
		}
		return ""
	})
	if got := storedData(t.Context(), "edge-1", "cut-0", "v"); got != "0" {
		t.Errorf("the cut gateway holds %s, want what it had", got)
	}
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	for i := range objects {
		awaitValue(t, fmt.Sprintf("cut-%d", i), strconv.Itoa(rounds), "edge-1")
	}
	// Some other objects change meanwhile; 200 separate updates would be noticed.
	if n := mustMetric(t, "edge-1", "frond_delivered_total") - delivered; n > objects+15 {
		t.Errorf("%v messages were delivered for %d objects", n, objects)
	}
	if after := containerRuns(awaitRunning(t, "app=cut", 1)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers changed:\n%v\n%v", before, after)
	}
	eventually(t, "the node is Ready", nodeReady("edge-1"))
}

func nodeReady(name string) func(context.Context) string {
	return func(ctx context.Context) string {
		c, err := nodeCondition(ctx, name, corev1.NodeReady)
		if err != nil {
			return err.Error()
		}
		if c.Status != corev1.ConditionTrue {
			return fmt.Sprintf("Ready is %s: %s", c.Status, c.Message)
		}
		return ""
	}
}

// nodeCondition returns a condition of a Node, a zero one if the Node has none of that type.
func nodeCondition(ctx context.Context, node string, kind corev1.NodeConditionType) (corev1.NodeCondition, error) {
	n, err := sharedKube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return corev1.NodeCondition{}, err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c, nil
		}
	}
	return corev1.NodeCondition{}, nil
}

func TestEdgecoreKilled_ContainersRunOn(t *testing.T) {
	needContainers(t)
	applyManifest(t, manyConfigMaps("survivor", "edge-1", 1))
	before := containerRuns(awaitRunning(t, "app=survivor", 1))
	if err := shared.Kill(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := setConfigMap(t.Context(), sharedKube, "survivor-0", "while dead"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	awaitValue(t, "survivor-0", "while dead", "edge-1")
	eventually(t, "the node is Ready", nodeReady("edge-1"))
	if after := containerRuns(awaitRunning(t, "app=survivor", 1)); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("containers changed:\n%v\n%v", before, after)
	}
}

// TestKillsDuringUpdates kills each cloudcore and each hub server in turn while ConfigMaps change all the time.
func TestKillsDuringUpdates(t *testing.T) {
	applyManifest(t, manyConfigMaps("storm", "edge-1", 3))
	applyManifest(t, manyConfigMaps("gale", "edge-2", 3))
	awaitRunning(t, "app=storm", 1)
	awaitRunning(t, "app=gale", 1)
	kube := sharedKube
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var version atomic.Int64
	var g errgroup.Group
	g.Go(func() error {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			v := strconv.FormatInt(version.Add(1), 10)
			for _, name := range []string{"storm-0", "storm-1", "storm-2", "gale-0", "gale-1", "gale-2"} {
				if err := setConfigMap(context.WithoutCancel(ctx), kube, name, v); err != nil {
					return err
				}
			}
		}
	})
	parts := []string{"cloudcore-1", "cloudcore-2", "hub-1", "hub-2", "hub-3"}
	for _, part := range parts {
		if err := shared.Kill(t.Context(), part); err != nil {
			t.Fatal(err)
		}
		// Deliveries must continue without the component: a version that is newer than the kill arrives at both gateways.
		passed := version.Load()
		for edge, name := range map[string]string{"edge-1": "storm-0", "edge-2": "gale-0"} {
			eventually(t, fmt.Sprintf("%s gets changes while %s is dead", edge, part), func(ctx context.Context) string {
				got, err := strconv.ParseInt(storedData(ctx, edge, name, "v"), 10, 64)
				if err != nil || got <= passed {
					return fmt.Sprintf("holds %d, %v; killed at %d", got, err, passed)
				}
				return ""
			})
		}
		if err := shared.Start(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	last := strconv.FormatInt(version.Load(), 10)
	for i := range 3 {
		awaitValue(t, fmt.Sprintf("storm-%d", i), last, "edge-1")
		awaitValue(t, fmt.Sprintf("gale-%d", i), last, "edge-2")
	}
	t.Logf("%s versions of 6 objects, %d kills", last, len(parts))
}

func TestMalformedMessages_OnEverySubject(t *testing.T) {
	applyManifest(t, manyConfigMaps("garbage", "edge-1", 1))
	awaitRunning(t, "app=garbage", 1)
	awaitValue(t, "garbage-0", "0", "edge-1")
	nc, _ := connectAdmin(t)
	header := func(name, value string) nats.Header {
		h := nats.Header{"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {time.Now().Format(time.RFC3339Nano)}}
		h[name] = []string{value}
		return h
	}
	kinds := map[string]struct {
		header nats.Header
		data   string
	}{
		"not-json":          {header("Frond-Version", "1"), "hello"},
		"null":              {header("Frond-Version", "1"), "null"},
		"wrong-version":     {header("Frond-Version", "99"), "{}"},
		"unknown-operation": {header("Frond-Op", "explode"), "{}"},
		"no-header":         {nil, "{}"},
	}
	dead := func() float64 {
		return mustMetric(t, "edge-1", "frond_dead_letters_total") + mustMetric(t, "cloudcore-1", "frond_dead_letters_total") +
			mustMetric(t, "cloudcore-2", "frond_dead_letters_total")
	}
	before := dead()
	sent := 0
	for _, plane := range []subject.Plane{subject.Desired, subject.Report, subject.Event} {
		for name, kind := range kinds {
			subj := subject.Of(plane, "edge-1", wire.Key{Resource: "configmaps", Namespace: "default", Name: name})
			if err := nc.PublishMsg(&nats.Msg{Subject: subj, Header: kind.header, Data: []byte(kind.data)}); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	for _, subj := range []string{subject.HeartbeatSubject("edge-1"), subject.CallSubject("edge-1", subject.VerbAttach), subject.CallSubject("edge-1", "explode")} {
		for _, data := range []string{"hello", "null"} {
			msg := &nats.Msg{Subject: subj, Reply: subject.InboxPrefix("edge-1") + ".garbage", Data: []byte(data)}
			if err := nc.PublishMsg(msg); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	if err := nc.Publish(subject.HeartbeatSubject("edge-1"), make([]byte, 10<<20)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("10 MiB: %v, want %v", err, nats.ErrMaxPayload)
	}
	eventually(t, "every garbage message is a dead letter", func(context.Context) string {
		if n := dead() - before; n < float64(sent) {
			return fmt.Sprintf("%v of %d", n, sent)
		}
		return ""
	})
	if err := setConfigMap(t.Context(), sharedKube, "garbage-0", "good"); err != nil {
		t.Fatal(err)
	}
	awaitValue(t, "garbage-0", "good", "edge-1")
	eventually(t, "the node is Ready", nodeReady("edge-1"))
}
