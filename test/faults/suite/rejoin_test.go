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
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/test/faults"
)

// identityState returns the state of a gateway in the output of `frond node list`.
func (r *testCluster) identityState(ctx context.Context, node string) (string, error) {
	cmd := exec.CommandContext(ctx, r.path("bin", "frond"), "node", "list", "-o", "json")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.cluster.Kubeconfig())
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("frond node list: %w", err)
	}
	var list []struct{ Node, State string }
	if err := json.Unmarshal(out, &list); err != nil {
		return "", err
	}
	for _, n := range list {
		if n.Node == node {
			return n.State, nil
		}
	}
	return "", errors.New("no such gateway")
}

func (r *testCluster) awaitState(t *testing.T, node, want string) {
	t.Helper()
	r.eventually(t, "the identity of "+node+" is "+want, waitTimeout, func(ctx context.Context) string {
		if is, err := r.identityState(ctx, node); err != nil || is != want {
			return fmt.Sprint(is, err)
		}
		return ""
	})
}

// expireKey makes the key of a stopped gateway one that expired this long ago, for the cloud and for the gateway.
func (r *testCluster) expireKey(t *testing.T, node string, ago time.Duration) {
	t.Helper()
	r.ageKey(t, node)
	patch := fmt.Sprintf(`{"spec":{"issued":%q,"expires":%q}}`,
		time.Now().Add(-2*ago).UTC().Format(time.RFC3339), time.Now().Add(-ago).UTC().Format(time.RFC3339))
	err := r.withCluster(func(c *devcluster.Cluster) error {
		_, err := c.Kubectl(t.Context(), "", "patch", "nodeidentity", node, "--type=merge", "-p", patch)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestExpiredKey_RejoinWindow: a gateway that was off until its key had expired rejoins without help within the window. After the window,
// or without one, it stays out and its error says what to do. The test takes half a minute.
func TestExpiredKey_RejoinWindow(t *testing.T) {
	const node = "edge-1"
	shared.awaitSettled(t)
	restart := func(ago time.Duration) (log int64) {
		t.Helper()
		shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), node) })
		shared.expireKey(t, node, ago)
		log = shared.logEnd(t, node)
		shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), node) })
		return log
	}
	// The gateway is off for a real lifetime of its key.
	shared.awaitShortKeys(t, 24*time.Second, node)
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), node) })
	shared.awaitState(t, node, "renewable")
	shared.setKeyPolicy(t, "", "")
	began := time.Now()
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), node) })
	shared.awaitState(t, node, "valid")
	shared.timeChange(t, node, faults.Name(node, "map", 2), "after the end of its key")
	ends := time.Unix(int64(shared.mustMetric(t, node, "frond_identity_expires_timestamp_seconds")), 0)
	shared.awaitCondition(t, node, "EdgeIdentity", "KeyValid", ends.UTC().Format(time.RFC3339))
	t.Logf("its key expired, it takes changes %.1fs after its start", time.Since(began).Seconds())

	for name, tt := range map[string]struct {
		ago    time.Duration
		window string
		words  []string
	}{
		"after the window": {91 * 24 * time.Hour, "", []string{"may be renewed until 2160h0m0s after that"}},
		"no window":        {time.Hour, "0s", []string{"may be renewed until 0s after that"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Cleanup(func() { shared.setKeyPolicy(t, "", "") })
			shared.setKeyPolicy(t, "", tt.window)
			log := restart(tt.ago)
			words := append(tt.words, "frond token create --node "+node, "frond reset", "frond join")
			shared.eventually(t, "it says what to do", waitTimeout, func(context.Context) string {
				said := shared.logSince(t, node, log)
				for _, word := range words {
					if !strings.Contains(said, word) {
						return "its log lacks " + word
					}
				}
				return ""
			})
			if n := shared.mustMetric(t, node, "frond_identity_renewals_total", "result=refused"); n == 0 {
				t.Error("the gateway has counted no refusal")
			}
			if n := shared.mustMetric(t, "cloudcore-1", "frond_identity_refusals_total", "reason=expired") +
				shared.mustMetric(t, "cloudcore-2", "frond_identity_refusals_total", "reason=expired"); n == 0 {
				t.Error("no cloudcore has counted a refusal")
			}
			shared.eventually(t, "/readyz and the gateway's own Node say it", waitTimeout, func(ctx context.Context) string {
				var own json.RawMessage
				err := shared.withCluster(func(c *devcluster.Cluster) (err error) {
					own, err = c.StoreGet(ctx, node, wire.Key{Resource: "nodes", Name: node})
					return errors.Join(err, c.Ready(ctx, node))
				})
				if err == nil || !strings.Contains(err.Error(), "[-]enrolment") || !strings.Contains(string(own), "frond token create --node "+node) {
					return fmt.Sprintf("they say %v, %s", err, own)
				}
				return ""
			})
			if tt.window == "" { // `frond node list` does not know the window that these cloudcores have here
				shared.awaitState(t, node, "expired")
			}
		})
	}
	restart(time.Hour)
	shared.awaitState(t, node, "valid")
	shared.awaitSettled(t)
}

// TestCARotation_OfflineGatewayRejoins runs the three steps of `frond ca rotate`, with a gateway off from before the first until after
// the last. The others keep their links; the offline gateway rejoins without help, and learns the new CA. It takes two minutes.
func TestCARotation_OfflineGatewayRejoins(t *testing.T) {
	const away = "edge-3"
	here := []string{"edge-1", "edge-2"}
	shared.awaitSettled(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &workload{rig: shared, random: faults.Random(envUint(t, "SEED", 1), 1<<35)}
	var load errgroup.Group
	load.Go(func() error { return w.run(ctx) })
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), away) })
	shared.awaitShortKeys(t, 40*time.Second, here...) // a gateway learns a new CA when it renews its key
	links := shared.linkReconnects(t, here...)

	old := mustReadFile(t, shared.path(names.Namespace, install.FolderCA, install.EntryBundle))
	step := func(args ...string) (believed []byte) {
		t.Helper()
		shared.runInstall(t, append([]string{"ca", "rotate"}, args...)...)
		believed = mustReadFile(t, shared.cluster.HubCA())
		for _, node := range here {
			shared.awaitTrust(t, node, believed)
		}
		return believed
	}
	if both := step("add"); !bytes.HasPrefix(both, old) || len(both) == len(old) {
		t.Fatalf("after the first step %d authorities are believed, or others", bytes.Count(both, []byte("BEGIN")))
	}
	step("switch", "--force") // without it, it would wait 15 min for cloudcores
	next := step("drop")
	if bytes.Contains(next, old) {
		t.Fatal("the authority before is still believed")
	}
	if now := shared.linkReconnects(t, here...); !maps.Equal(now, links) {
		t.Errorf("links were created again: %v times, and %v before", now, links)
	}

	shared.ageKey(t, away)
	if known := mustReadFile(t, shared.path(away, "data", "identity", "hub-ca.crt")); !bytes.Equal(known, old) {
		t.Fatal("the gateway that was off knows more than the authority before") // or the rest proves nothing
	}
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), away) })
	shared.awaitLink(t, away, true)
	shared.awaitTrust(t, away, next)
	for _, node := range nodes {
		shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Reset(t.Context(), node) })
	}
	shared.awaitLongKeys(t)
	cancel()
	if err := load.Wait(); err != nil {
		t.Fatal(err)
	}
	shared.awaitSettled(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

// awaitTrust waits until a gateway trusts exactly these CAs for the hub.
func (r *testCluster) awaitTrust(t *testing.T, node string, want []byte) {
	t.Helper()
	file := r.path(node, "data", "identity", "hub-ca.crt")
	r.eventually(t, node+" believes the hub's authorities", waitTimeout, func(context.Context) string {
		if have := mustReadFile(t, file); !bytes.Equal(have, want) {
			return fmt.Sprintf("%d certificates, not %d, or others", bytes.Count(have, []byte("BEGIN")), bytes.Count(want, []byte("BEGIN")))
		}
		return ""
	})
}

// TestHubAndCloudcoresLost_GatewaysReconnect: every cloudcore and the whole hub are killed; the hub starts again and can admit no
// gateway. All gateways reconnect without help once the first cloudcore runs.
func TestHubAndCloudcoresLost_GatewaysReconnect(t *testing.T) {
	shared.awaitSettled(t)
	cloudcores, hubs := []string{"cloudcore-1", "cloudcore-2"}, []string{"hub-1", "hub-2", "hub-3"}
	for _, part := range slices.Concat(cloudcores, hubs) {
		shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
	}
	for _, node := range nodes {
		shared.awaitLink(t, node, false)
	}
	for _, hub := range hubs {
		shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), hub) })
	}
	for _, hub := range hubs {
		shared.eventually(t, hub+" is ready", waitTimeout, func(ctx context.Context) string {
			return errorText(shared.withCluster(func(c *devcluster.Cluster) error { return c.Ready(ctx, hub) }))
		})
	}
	began := time.Now()
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), cloudcores[0]) })
	for _, node := range nodes {
		shared.awaitLink(t, node, true)
		t.Logf("%s is linked %.1fs after the first cloudcore was started", node, time.Since(began).Seconds())
	}
	shared.mustCluster(t, func(c *devcluster.Cluster) error { return c.Start(t.Context(), cloudcores[1]) })
	shared.awaitSettled(t)
}
