package ports_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/controllers/ports"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// replica is an Allocator with its recorded callbacks.
type replica struct {
	*ports.Allocator
	mu    sync.Mutex
	nodes map[uint16]string // guarded by mu
}

func (r *replica) assignedPorts() map[uint16]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes
}

// startAllocator runs an Allocator with exactly the rights of Rules; asked is called for nodes that are to report themselves.
func startAllocator(t *testing.T, owns func(string) bool, asked func(node string)) *replica {
	t.Helper()
	rest := shared.Cluster(t).ConfigWithRules(t, "frond-ports-test", ports.Rules())
	objects, err := cache.New(rest, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{}
	changed := func(nodes map[uint16]string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.nodes = nodes
	}
	r.Allocator = ports.New([]config.PortRange{{First: 30000, Last: 30099}}, client, objects, owns, changed, asked, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return objects.Start(ctx) })
	g.Go(func() error { return r.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("keeper: %v", err)
		}
	})
	return r
}

// TestAllocator_NeverSharesPort lets two cloudcores that both own all nodes allocate ports at once.
func TestAllocator_NeverSharesPort(t *testing.T) {
	cluster := shared.Cluster(t)
	client, prefix := cluster.Client(t), cluster.Namespace(t)
	t.Cleanup(func() { // after the allocators have ended
		err := client.CoreV1().ConfigMaps("kube-system").Delete(context.WithoutCancel(t.Context()), "frond-node-ports", metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	var mu sync.Mutex
	asked := map[string]int{}
	ask := func(node string) {
		mu.Lock()
		defer mu.Unlock()
		asked[node]++
	}
	all := func(string) bool { return true }
	one, two := startAllocator(t, all, ask), startAllocator(t, all, ask)
	const count = 20
	var names []string
	var g errgroup.Group
	for i := range count {
		name := fmt.Sprintf("%s-%d", prefix, i)
		names = append(names, name)
		g.Go(func() error {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"node-role.kubernetes.io/edge": ""}}}
			_, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
			return err
		})
		t.Cleanup(func() {
			_ = client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}) // or another test's
		})
	}
	cloud := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: prefix + "-cloud"}}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), cloud, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), cloud.Name, metav1.DeleteOptions{}) // as above
	})
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, time.Minute, func() error {
		for _, r := range []*replica{one, two} {
			nodes := r.assignedPorts()
			if len(nodes) != count {
				return fmt.Errorf("%d ports of %d", len(nodes), count)
			}
			for port, name := range nodes {
				if got, _ := r.Port(name); got != port {
					return fmt.Errorf("%s has %d and %d", name, got, port)
				}
			}
		}
		return nil
	})
	for _, name := range names {
		first, _ := one.Port(name)
		if second, _ := two.Port(name); first != second || first < 30000 || first > 30099 {
			t.Errorf("%s: %d and %d", name, first, second)
		}
	}
	if _, has := one.Port(cloud.Name); has {
		t.Error("a node of the cloud got a port")
	}
	kit.Succeeds(t, time.Minute, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(asked) != count {
			return fmt.Errorf("%d nodes were asked to report themselves", len(asked))
		}
		return nil
	})

	// A deleted ConfigMap is created again, with the ports of all nodes.
	if err := client.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), "frond-node-ports", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, time.Minute, func() error {
		cm, err := client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "frond-node-ports", metav1.GetOptions{})
		if err == nil && len(cm.Data) != count {
			err = fmt.Errorf("%d ports", len(cm.Data))
		}
		return err
	})
}
