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

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/faults"
	"github.com/frond-edge/frond/internal/install"
)

// identityState is what `frond node list` says of a gateway.
func (r *rig) identityState(ctx context.Context, node string) (string, error) {
	cmd := exec.CommandContext(ctx, r.in("bin", "frond"), "node", "list", "-o", "json")
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

func (r *rig) awaitState(t *testing.T, node, want string) {
	t.Helper()
	r.eventually(t, "the identity of "+node+" is "+want, patience, func(ctx context.Context) string {
		if is, err := r.identityState(ctx, node); err != nil || is != want {
			return fmt.Sprint(is, err)
		}
		return ""
	})
}

// ended makes the key of a gateway, which does not run, one that has expired so long ago, for the cloud and for itself.
func (r *rig) ended(t *testing.T, node string, ago time.Duration) {
	t.Helper()
	r.nearItsEnd(t, node)
	patch := fmt.Sprintf(`{"spec":{"issued":%q,"expires":%q}}`,
		time.Now().Add(-2*ago).UTC().Format(time.RFC3339), time.Now().Add(-ago).UTC().Format(time.RFC3339))
	err := r.do(func(c *devcluster.Cluster) error {
		_, err := c.Kubectl(t.Context(), "", "patch", "nodeidentity", node, "--type=merge", "-p", patch)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAGatewayThatWasOffTooLong: one that was off until its key had expired is back by itself, within the window; after it, and with no
// window at all, it stays out and says what to do. It takes half a minute.
func TestAGatewayThatWasOffTooLong(t *testing.T) {
	const node = "edge-1"
	shared.settle(t)
	restart := func(ago time.Duration) (log int64) {
		t.Helper()
		shared.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), node) })
		shared.ended(t, node, ago)
		log = shared.logEnd(t, node)
		shared.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), node) })
		return log
	}
	// Off for a real while, until a real end.
	shared.shortLives(t, 24*time.Second, node)
	shared.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), node) })
	shared.awaitState(t, node, "renewable")
	shared.policy(t, "", "")
	began := time.Now()
	shared.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), node) })
	shared.awaitState(t, node, "valid")
	shared.takes(t, node, faults.Name(node, "map", 2), "after the end of its key")
	ends := time.Unix(int64(shared.metric(t, node, "frond_identity_expires_timestamp_seconds")), 0)
	shared.nodeSays(t, node, "EdgeIdentity", "KeyValid", ends.UTC().Format(time.RFC3339))
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
			t.Cleanup(func() { shared.policy(t, "", "") })
			shared.policy(t, "", tt.window)
			log := restart(tt.ago)
			words := append(tt.words, "frond token create --node "+node, "frond reset", "frond join")
			shared.eventually(t, "it says what to do", patience, func(context.Context) string {
				said := shared.logSince(t, node, log)
				for _, word := range words {
					if !strings.Contains(said, word) {
						return "its log lacks " + word
					}
				}
				return ""
			})
			if n := shared.metric(t, node, "frond_identity_renewals_total", "result=refused"); n == 0 {
				t.Error("the gateway has counted no refusal")
			}
			if n := shared.metric(t, "cloudcore-1", "frond_identity_refusals_total", "reason=expired") +
				shared.metric(t, "cloudcore-2", "frond_identity_refusals_total", "reason=expired"); n == 0 {
				t.Error("no cloudcore has counted a refusal")
			}
			shared.eventually(t, "/readyz and the gateway's own Node say it", patience, func(ctx context.Context) string {
				var own json.RawMessage
				err := shared.do(func(c *devcluster.Cluster) (err error) {
					own, err = c.StoreGet(ctx, node, wire.Key{Resource: "nodes", Name: node})
					return errors.Join(err, c.Ready(ctx, node))
				})
				if err == nil || !strings.Contains(err.Error(), "[-]enrolment") || !strings.Contains(string(own), "frond token create --node "+node) {
					return fmt.Sprintf("they say %v, %s", err, own)
				}
				return ""
			})
			if tt.window == "" { // what frond node list goes by is not what this cluster's cloudcores were told here
				shared.awaitState(t, node, "expired")
			}
		})
	}
	restart(time.Hour)
	shared.awaitState(t, node, "valid")
	shared.settle(t)
}

// TestTheHubsAuthorityIsReplacedWhileAGatewayIsOff takes the three steps of `frond ca rotate`, with a gateway off from before the
// first until after the last. The others keep their links; it comes back by itself, and learns of the new authority. It takes two minutes.
func TestTheHubsAuthorityIsReplacedWhileAGatewayIsOff(t *testing.T) {
	const away = "edge-3"
	here := []string{"edge-1", "edge-2"}
	shared.settle(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &workload{rig: shared, random: faults.Random(setting(t, "SEED", 1), 1<<35)}
	var load errgroup.Group
	load.Go(func() error { return w.run(ctx) })
	shared.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), away) })
	shared.shortLives(t, 40*time.Second, here...) // who renews a key learns of an authority
	links := shared.relinks(t, here...)

	old := read(t, shared.in(identity.Namespace, install.FolderCA, install.EntryBundle))
	step := func(args ...string) (believed []byte) {
		t.Helper()
		shared.install(t, append([]string{"ca", "rotate"}, args...)...)
		believed = read(t, shared.cluster.HubCA())
		for _, node := range here {
			shared.trusts(t, node, believed)
		}
		return believed
	}
	if both := step("add"); !bytes.HasPrefix(both, old) || len(both) == len(old) {
		t.Fatalf("after the first step %d authorities are believed, or others", bytes.Count(both, []byte("BEGIN")))
	}
	step("switch", "--force") // it would wait 15 min for cloudcores
	next := step("drop")
	if bytes.Contains(next, old) {
		t.Fatal("the authority before is still believed")
	}
	if now := shared.relinks(t, here...); !maps.Equal(now, links) {
		t.Errorf("links were made anew: %v times, and %v before", now, links)
	}

	shared.nearItsEnd(t, away)
	if known := read(t, shared.in(away, "data", "identity", "hub-ca.crt")); !bytes.Equal(known, old) {
		t.Fatal("the gateway that was off knows more than the authority before") // or what follows proves nothing
	}
	shared.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), away) })
	shared.linked(t, away, true)
	shared.trusts(t, away, next)
	for _, node := range nodes {
		shared.must(t, func(c *devcluster.Cluster) error { return c.Reset(t.Context(), node) })
	}
	shared.longLives(t)
	cancel()
	if err := load.Wait(); err != nil {
		t.Fatal(err)
	}
	shared.settle(t)
	t.Logf("%d changes, %d not confirmed", w.n.Load(), w.failed.Load())
}

// trusts waits until a gateway believes these authorities for the hub.
func (r *rig) trusts(t *testing.T, node string, want []byte) {
	t.Helper()
	file := r.in(node, "data", "identity", "hub-ca.crt")
	r.eventually(t, node+" believes the hub's authorities", patience, func(context.Context) string {
		if have := read(t, file); !bytes.Equal(have, want) {
			return fmt.Sprintf("%d certificates, not %d, or others", bytes.Count(have, []byte("BEGIN")), bytes.Count(want, []byte("BEGIN")))
		}
		return ""
	})
}

// TestHubAndCloudcoresDieAtOnce: every cloudcore and the whole hub are killed; the hub starts again, and nobody may come in. With the
// first cloudcore all gateways are back by themselves.
func TestHubAndCloudcoresDieAtOnce(t *testing.T) {
	shared.settle(t)
	cloudcores, hubs := []string{"cloudcore-1", "cloudcore-2"}, []string{"hub-1", "hub-2", "hub-3"}
	for _, part := range slices.Concat(cloudcores, hubs) {
		shared.must(t, func(c *devcluster.Cluster) error { return c.Kill(t.Context(), part) })
	}
	for _, node := range nodes {
		shared.linked(t, node, false)
	}
	for _, hub := range hubs {
		shared.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), hub) })
	}
	for _, hub := range hubs {
		shared.eventually(t, hub+" is ready", patience, func(ctx context.Context) string {
			return said(shared.do(func(c *devcluster.Cluster) error { return c.Ready(ctx, hub) }))
		})
	}
	began := time.Now()
	shared.must(t, func(c *devcluster.Cluster) error { return c.Launch(t.Context(), cloudcores[0]) })
	for _, node := range nodes {
		shared.linked(t, node, true)
		t.Logf("%s is linked %.1fs after the first cloudcore was started", node, time.Since(began).Seconds())
	}
	shared.must(t, func(c *devcluster.Cluster) error { return c.Start(t.Context(), cloudcores[1]) })
	shared.settle(t)
}
