package join_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/test/kit"
)

// initReport has the fields of frond init -o json that are used here.
type initReport struct {
	CAHash  string `json:"caHash"`
	Objects []struct{ Kind, Name, Action string }
}

func (r initReport) changedObjects() (all []string) {
	for _, o := range r.Objects {
		if o.Action != "unchanged" {
			all = append(all, o.Kind+" "+o.Name)
		}
	}
	return all
}

// TestInstall_JoinAndReset follows the instructions of docs/operations for a new installation, in their order.
func TestInstall_JoinAndReset(t *testing.T) {
	c := newBareCluster(t)
	args := []string{"init", "--hub-url", "tls://hub.example.com:7422,wss://hub.example.com", "--taint-gateways", "-o", "json"}
	first := decodeJSON[initReport](t, c.runFrond(t, args...))
	before := c.resourceVersions(t)
	if len(before) < 8 || !strings.HasPrefix(first.CAHash, "sha256:") {
		t.Fatalf("frond init: %+v, %v", first, before)
	}
	if again := decodeJSON[initReport](t, c.runFrond(t, args...)); len(again.changedObjects()) > 0 || again.CAHash != first.CAHash {
		t.Errorf("frond init once more changes %v", again.changedObjects())
	}
	if diff := cmp.Diff(before, c.resourceVersions(t)); diff != "" {
		t.Errorf("frond init once more writes (-before +after):\n%s", diff)
	}
	c.installManifests(t)
	doors := c.openHubPorts(t)
	t.Run("wrong hash", func(t *testing.T) { c.wrongHash(t, doors) })
	t.Run("tls", func(t *testing.T) { c.throughTheLeafPort(t, doors) })
	t.Run("wss through a proxy", func(t *testing.T) { c.throughAProxy(t, doors) })
	if diff := cmp.Diff(before, c.resourceVersions(t)); diff != "" {
		t.Errorf("gateways that join change what frond init made (-before +after):\n%s", diff)
	}
	t.Run("a deleted namespace", c.deletedNamespace)
}

const manifestDir = "../../../deploy/cloud"

// installManifests applies the manifests and runs their pods.
func (c *bareCluster) installManifests(t *testing.T) {
	t.Helper()
	c.runKubectl(t, "apply", "--server-side", "-k", manifestDir)
	before := c.runKubectl(t, "get", "-k", manifestDir, "-o", "jsonpath={.items[*].metadata.resourceVersion}")
	c.runKubectl(t, "apply", "--server-side", "-k", manifestDir)
	if after := c.runKubectl(t, "get", "-k", manifestDir, "-o", "jsonpath={.items[*].metadata.resourceVersion}"); after != before || len(strings.Fields(after)) != 7 {
		t.Errorf("applied once more, the manifests are %s, not %s", after, before)
	}
	set, err := c.kube.AppsV1().StatefulSets(namespace).Get(t.Context(), "frond-hub", metav1.GetOptions{})
	kit.Must(t, err)
	deployment, err := c.kube.AppsV1().Deployments(namespace).Get(t.Context(), "cloudcore", metav1.GetOptions{})
	kit.Must(t, err)
	var hosts strings.Builder
	for i := range int(*set.Spec.Replicas) {
		fmt.Fprintf(&hosts, "10.201.0.%d %[2]s-%[3]d.%[2]s.%[4]s.svc\n", 1+i, set.Spec.ServiceName, i, namespace)
	}
	c.running = c.startPods(t, c.programs.NatsServer, set.Name, 1, *set.Spec.Replicas, set.Spec.Template, hosts.String())
	c.running = append(c.running, c.startPods(t, c.programs.Cloudcore, deployment.Name, 11, *deployment.Spec.Replicas, deployment.Spec.Template, hosts.String())...)
	c.awaitPodsReady(t)
}

func (c *bareCluster) awaitPodsReady(t *testing.T) {
	t.Helper()
	eventually(t, "all pods are ready", func(ctx context.Context) error {
		var faults []error
		for _, p := range c.running {
			faults = append(faults, c.checkPodReady(ctx, p))
		}
		return errors.Join(faults...)
	})
}

// hubPorts are the addresses of the hub for clients outside the cluster.
type hubPorts struct {
	leaf, websocket, proxy *relay
}

// openHubPorts opens the ports of the Service frond-hub-gateways, and an HTTP proxy that leads to its WebSocket port alone.
func (c *bareCluster) openHubPorts(t *testing.T) hubPorts {
	t.Helper()
	const websocket = frontAddress + ":443"
	cloud := c.namespaceName("cloud")
	return hubPorts{
		leaf:      startRelay(t, cloud, frontAddress+":7422", forwardTo(cloud, "10.201.0.1:7422", "10.201.0.2:7422", "10.201.0.3:7422")),
		websocket: startRelay(t, cloud, websocket, forwardTo(cloud, "10.201.0.1:7443", "10.201.0.2:7443", "10.201.0.3:7443")),
		proxy:     startRelay(t, cloud, frontAddress+":3128", connectProxy(cloud, map[string]string{"hub.example.com:443": websocket})),
	}
}
