package join_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// report is the part of frond init -o json that counts here.
type report struct {
	CAHash  string `json:"caHash"`
	Objects []struct{ Kind, Name, Action string }
}

func (r report) changed() (all []string) {
	for _, o := range r.Objects {
		if o.Action != "unchanged" {
			all = append(all, o.Kind+" "+o.Name)
		}
	}
	return all
}

// TestFromNothingToAGatewayAndBack is what docs/operations tell a newcomer to do, in their order.
func TestFromNothingToAGatewayAndBack(t *testing.T) {
	c := newCloud(t)
	args := []string{"init", "--hub-url", "tls://hub.example.com:7422,wss://hub.example.com", "--taint-gateways", "-o", "json"}
	first := decoded[report](t, c.frond(t, args...))
	before := c.versions(t)
	if len(before) < 8 || !strings.HasPrefix(first.CAHash, "sha256:") {
		t.Fatalf("frond init: %+v, %v", first, before)
	}
	if again := decoded[report](t, c.frond(t, args...)); len(again.changed()) > 0 || again.CAHash != first.CAHash {
		t.Errorf("frond init once more changes %v", again.changed())
	}
	if diff := cmp.Diff(before, c.versions(t)); diff != "" {
		t.Errorf("frond init once more writes (-before +after):\n%s", diff)
	}
	c.install(t)
	doors := c.doors(t)
	t.Run("wrong hash", func(t *testing.T) { c.wrongHash(t, doors) })
	t.Run("tls", func(t *testing.T) { c.throughTheLeafPort(t, doors) })
	t.Run("wss through a proxy", func(t *testing.T) { c.throughAProxy(t, doors) })
	if diff := cmp.Diff(before, c.versions(t)); diff != "" {
		t.Errorf("gateways that join change what frond init made (-before +after):\n%s", diff)
	}
	t.Run("a deleted namespace", c.deletedNamespace)
}

const manifests = "../../../deploy/cloud"

// install applies the manifests and runs what they say.
func (c *cloud) install(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "--server-side", "-k", manifests)
	before := c.kubectl(t, "get", "-k", manifests, "-o", "jsonpath={.items[*].metadata.resourceVersion}")
	c.kubectl(t, "apply", "--server-side", "-k", manifests)
	if after := c.kubectl(t, "get", "-k", manifests, "-o", "jsonpath={.items[*].metadata.resourceVersion}"); after != before || len(strings.Fields(after)) != 7 {
		t.Errorf("applied once more, the manifests are %s, not %s", after, before)
	}
	set, err := c.kube.AppsV1().StatefulSets(namespace).Get(t.Context(), "frond-hub", metav1.GetOptions{})
	must(t, err)
	deployment, err := c.kube.AppsV1().Deployments(namespace).Get(t.Context(), "cloudcore", metav1.GetOptions{})
	must(t, err)
	var hosts strings.Builder
	for i := range int(*set.Spec.Replicas) {
		fmt.Fprintf(&hosts, "10.201.0.%d %[2]s-%[3]d.%[2]s.%[4]s.svc\n", 1+i, set.Spec.ServiceName, i, namespace)
	}
	c.running = c.pods(t, c.programs.NatsServer, set.Name, 1, *set.Spec.Replicas, set.Spec.Template, hosts.String())
	c.running = append(c.running, c.pods(t, c.programs.Cloudcore, deployment.Name, 11, *deployment.Spec.Replicas, deployment.Spec.Template, hosts.String())...)
	c.podsReady(t)
}

func (c *cloud) podsReady(t *testing.T) {
	t.Helper()
	eventually(t, "all pods are ready", func(ctx context.Context) error {
		var faults []error
		for _, p := range c.running {
			faults = append(faults, c.ready(ctx, p))
		}
		return errors.Join(faults...)
	})
}

// doors are the ways to the hub from outside.
type doors struct {
	leaf, websocket, proxy *relay
}

// doors opens what the Service frond-hub-gateways says, and an HTTP proxy that leads to its WebSocket port alone.
func (c *cloud) doors(t *testing.T) doors {
	t.Helper()
	const websocket = front + ":443"
	cloud := c.name("cloud")
	return doors{
		leaf:      listen(t, cloud, front+":7422", pass(cloud, "10.201.0.1:7422", "10.201.0.2:7422", "10.201.0.3:7422")),
		websocket: listen(t, cloud, websocket, pass(cloud, "10.201.0.1:7443", "10.201.0.2:7443", "10.201.0.3:7443")),
		proxy:     listen(t, cloud, front+":3128", proxy(cloud, map[string]string{"hub.example.com:443": websocket})),
	}
}
