package suite_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/test/faults"
)

// shortLife is the lifetime of keys during the rotation: each is renewed after some 40 s, and expires no sooner than 15 s later, so that
// cloudcores may be killed meanwhile and no link is lost.
const shortLife = time.Minute

// TestKeyRotation_UnderLoad: while objects change, gateways renew their keys repeatedly, all certificates of the hub and of
// the cloudcores are replaced, cloudcores are killed, and a gateway is revoked and joins again. Only the revoked gateway's link is
// created again, and no promise is broken. It takes a minute and a half.
func TestKeyRotation_UnderLoad(t *testing.T) {
	const thief = "edge-2"
	stay := []string{"edge-1", "edge-3"}
	shared.awaitSettled(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &workload{rig: shared, random: faults.Random(envUint(t, "SEED", 1), 1<<34)}
	var load errgroup.Group
	load.Go(func() error { return w.run(ctx) })
	shared.awaitShortKeys(t, shortLife, nodes...)
	links := shared.linkReconnects(t, stay...)

	var revoking errgroup.Group
	began := time.Now()
	revoking.Go(func() error { return shared.runFrond(ctx, "node", "revoke", thief, "--yes", "--timeout=90s") })
	shared.awaitLink(t, thief, false)
	t.Logf("the link of %s is down %.1fs after its revocation was begun", thief, time.Since(began).Seconds())
	shared.replaceCertificates(t)
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		shared.mustCluster(t, func(c *devcluster.Cluster) error {
			return errors.Join(c.Kill(t.Context(), part), c.Start(t.Context(), part))
		})
	}
	for _, node := range stay {
		shared.awaitRenewals(t, node, 2) // the first one at its start
	}
	if now := shared.linkReconnects(t, stay...); !maps.Equal(now, links) {
		t.Errorf("links were created again: %v times, and %v before", now, links)
	}
	if err := revoking.Wait(); err != nil {
		t.Error(err)
	}
	shared.awaitCondition(t, thief, "EdgeConnected", "Revoked", "join again with a token issued for this node")
	if up := shared.mustMetric(t, thief, "frond_link_up"); up != 0 {
		t.Error("the revoked gateway is linked")
	}
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), thief) })
	if err := shared.wipeDisk(t.Context(), thief); err != nil { // as frond reset does; its token names it
		t.Fatal(err)
	}
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), thief) })
	shared.awaitLink(t, thief, true)

	shared.awaitLongKeys(t)
	cancel()
	if err := load.Wait(); err != nil {
		t.Fatal(err)
	}
	shared.awaitSettled(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

// editConfig changes a component's configuration file, and reports whether the file changed. The component reads it when it starts.
func (r *testCluster) editConfig(t *testing.T, part, file string, change func(cfg map[string]any)) bool {
	t.Helper()
	file = filepath.Join(r.cluster.Dir(), part, file)
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg := map[string]any{}
	if err := yaml.Unmarshal(before, &cfg); err != nil {
		t.Fatal(err)
	}
	was, err := yaml.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	change(cfg)
	after, err := yaml.Marshal(cfg)
	if err == nil && !bytes.Equal(was, after) {
		err = os.WriteFile(file, after, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return !bytes.Equal(was, after)
}

// setKeyPolicy gives cloudcores other key lifetimes; "" restores their own. It restarts one cloudcore after the other.
func (r *testCluster) setKeyPolicy(t *testing.T, life, window string) {
	t.Helper()
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		changed := r.editConfig(t, part, "cloudcore.yaml", func(cfg map[string]any) {
			identity := cfg["identity"].(map[string]any)
			for name, value := range map[string]string{"keyLifetime": life, "renewWindow": window} {
				if delete(identity, name); value != "" {
					identity[name] = value
				}
			}
		})
		if !changed {
			continue
		}
		ctx := context.WithoutCancel(t.Context()) // also when the test has failed
		err := r.withCluster(func(c *devcluster.Cluster) error {
			if c.PID(part) != 0 {
				if err := c.Kill(ctx, part); err != nil {
					return err
				}
			}
			return c.Start(ctx, part)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// awaitLongKeys waits until the keys of all gateways have the long lifetime again.
func (r *testCluster) awaitLongKeys(t *testing.T) {
	t.Helper()
	r.setKeyPolicy(t, "", "")
	for _, node := range nodes {
		r.eventually(t, "the key of "+node+" lives long again", waitTimeout, func(ctx context.Context) string {
			if ends, err := r.readMetric(ctx, node, "frond_identity_expires_timestamp_seconds"); err != nil || ends < float64(time.Now().Add(time.Hour).Unix()) {
				return fmt.Sprintf("until %v, %v", ends, err)
			}
			return ""
		})
	}
}

// ageKey backdates the key of a stopped gateway so that most of a short lifetime has passed.
func (r *testCluster) ageKey(t *testing.T, node string) {
	t.Helper()
	file := filepath.Join(r.cluster.Dir(), node, "data", "identity", "enrolment.json")
	record := map[string]any{}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	record["issued"], record["expires"] = now.Add(-shortLife), now.Add(shortLife/10)
	if data, err = json.Marshal(record); err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// awaitShortKeys restarts gateways with keys that are due for renewal, repeatedly, and waits until each has renewed its key.
func (r *testCluster) awaitShortKeys(t *testing.T, life time.Duration, nodes ...string) {
	t.Helper()
	t.Cleanup(func() { r.setKeyPolicy(t, "", "") })
	r.setKeyPolicy(t, life.String(), "")
	for _, node := range nodes {
		r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), node) })
		r.ageKey(t, node)
		r.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), node) })
	}
	for _, node := range nodes {
		r.awaitRenewals(t, node, 1)
	}
}

// awaitCondition waits until a Node has a condition with a reason and some text.
func (r *testCluster) awaitCondition(t *testing.T, node, kind, reason, words string) {
	t.Helper()
	r.eventually(t, node+" says "+reason, waitTimeout, func(ctx context.Context) string {
		object, err := r.kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range object.Status.Conditions {
			if string(c.Type) == kind && c.Reason == reason && strings.Contains(c.Message, words) {
				return ""
			}
		}
		return fmt.Sprintf("%+v", object.Status.Conditions)
	})
}

// linkReconnects counts the links that gateways have made again since their start.
func (r *testCluster) linkReconnects(t *testing.T, nodes ...string) map[string]float64 {
	t.Helper()
	links := map[string]float64{}
	for _, node := range nodes {
		links[node] = r.mustMetric(t, node, "frond_link_reconnects_total")
	}
	return links
}

// readMetric reads a metric of a component.
func (r *testCluster) readMetric(ctx context.Context, part, name string, labels ...string) (value float64, err error) {
	err = r.withCluster(func(c *devcluster.Cluster) error {
		value, err = c.Metric(ctx, part, name, labels...)
		return err
	})
	return value, err
}

// mustMetric reads a metric of a component, with retries.
func (r *testCluster) mustMetric(t *testing.T, part, name string, labels ...string) (value float64) {
	t.Helper()
	r.eventually(t, name+" of "+part, waitTimeout, func(ctx context.Context) string {
		var err error
		value, err = r.readMetric(ctx, part, name, labels...)
		return errorText(err)
	})
	return value
}

// awaitRenewals waits until a gateway has renewed its key this many times since its start.
func (r *testCluster) awaitRenewals(t *testing.T, node string, times float64) {
	t.Helper()
	r.eventually(t, fmt.Sprintf("%s renews its key %v times", node, times), waitTimeout, func(ctx context.Context) string {
		if n, err := r.readMetric(ctx, node, "frond_identity_renewals_total", "result=renewed"); err != nil || n < times {
			return fmt.Sprint(n, " times, ", err)
		}
		return ""
	})
}

// awaitLink waits until a gateway has a link, or none.
func (r *testCluster) awaitLink(t *testing.T, node string, up bool) {
	t.Helper()
	r.eventually(t, fmt.Sprintf("%s is linked: %v", node, up), waitTimeout, func(ctx context.Context) string {
		if is, err := r.readMetric(ctx, node, "frond_link_up"); err != nil || (is == 1) != up {
			return fmt.Sprint(is, err)
		}
		return ""
	})
}

// runFrond runs the command frond.
func (r *testCluster) runFrond(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(r.cluster.Dir(), "bin", "frond"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.Kubeconfig())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("frond %v: %w: %s", args, err, out)
	}
	return nil
}
