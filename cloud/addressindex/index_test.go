package addressindex

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// addressFixture is a cluster with the objects of the address look-ups: an edge node and a cloud node, pods on them, and a Service.
type addressFixture struct {
	kube      kubernetes.Interface
	namespace string
}

// createNode creates a Node; edge nodes have names that begin with "edge".
func (w addressFixture) createNode(t *testing.T, name, host string, ranges ...string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: ranges[0], PodCIDRs: ranges}}
	if strings.HasPrefix(name, "edge") {
		node.Labels = map[string]string{"node-role.kubernetes.io/edge": ""}
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: host}}
	if _, err := w.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.kube.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
	})
}

func (w addressFixture) createPod(t *testing.T, name, node, address string, change func(*corev1.Pod)) {
	t.Helper()
	pods := w.kube.CoreV1().Pods(w.namespace)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "x"}}},
	}
	status := corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}
	if change != nil {
		pod.Status = status
		change(pod)
		status = pod.Status
	}
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status = status
	if _, err := pods.UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// createService creates a Service with a slice of one endpoint per pod; the name of each is "node/pod", with nothing
// before the slash for no node.
func (w addressFixture) createService(t *testing.T, name, clusterIP string, of map[string]string) {
	t.Helper()
	port := func(name string, number int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Port: number}
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{port("http", 80), port("https", 443)}},
	}
	if _, err := w.kube.CoreV1().Services(w.namespace).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("https"), Port: new(int32(8443))}},
	}
	for named, address := range of {
		node, pod, _ := strings.Cut(named, "/")
		endpoint := discoveryv1.Endpoint{Addresses: []string{address}}
		if node != "" {
			endpoint.NodeName, endpoint.TargetRef = &node, &corev1.ObjectReference{Kind: "Pod", Name: pod}
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	if _, err := w.kube.DiscoveryV1().EndpointSlices(w.namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w addressFixture) startCache(t *testing.T, cluster *kubetest.Cluster) Addresses {
	t.Helper()
	objects, err := podcache.New(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := NewAddresses(t.Context(), objects)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return objects.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	sctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if !objects.WaitForCacheSync(sctx) {
		t.Fatal("the cache is not filled")
	}
	return addresses
}

func TestAddresses(t *testing.T) {
	cluster := sharedCluster.Cluster(t)
	w := addressFixture{kube: cluster.Client(t), namespace: cluster.Namespace(t)}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // no controller creates it here, but pods need it
	if _, err := w.kube.CoreV1().ServiceAccounts(w.namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.createNode(t, "edge-a", "192.168.1.10", "10.201.1.0/24", "fd01:1::/64")
	w.createNode(t, "edge-b", "192.168.1.10", "10.201.0.0/16")
	w.createNode(t, "cloud-a", "10.9.0.1", "10.202.1.0/24")
	w.createPod(t, "web", "edge-a", "10.201.1.7", nil)
	w.createPod(t, "ended", "edge-b", "10.201.1.7", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	w.createPod(t, "in-host", "edge-b", "10.202.1.7", func(p *corev1.Pod) { p.Spec.HostNetwork = true })
	w.createPod(t, "thief", "edge-b", "10.202.1.7", nil)
	w.createPod(t, "of-cloud", "cloud-a", "10.202.1.7", nil)
	w.createPod(t, "of-nobody", "no-node", "10.203.1.7", nil)
	w.createPod(t, "static", "edge-b", "10.201.2.7", func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} })
	w.createService(t, "on-edge", "10.96.200.71", map[string]string{
		"edge-a/web": "10.201.1.7", "edge-b/static": "10.201.2.7", "edge-b/web": "10.201.2.8", "edge-a/gone": "10.201.1.9", "no-node/of-nobody": "10.203.1.7",
	})
	w.createService(t, "on-both", "10.96.200.72", map[string]string{"edge-a/web": "10.201.1.7", "cloud-a/of-cloud": "10.202.1.7"})
	w.createService(t, "by-hand", "10.96.200.73", map[string]string{"/": "192.0.2.1"})
	a := w.startCache(t, cluster)

	for address, want := range map[string][]string{
		"10.201.1.7":   {"pod edge-a true", "podCIDR edge-a true", "podCIDR edge-b true"},
		"fd01:1::7":    {"podCIDR edge-a true"},
		"10.202.1.7":   {"pod cloud-a false", "pod edge-b true", "podCIDR cloud-a false"},
		"10.203.1.7":   nil,
		"192.168.1.10": {"host edge-a true", "host edge-b true"},
		"10.9.0.1":     {"host cloud-a false"},
	} {
		claims, err := a.Claims(t.Context(), netip.MustParseAddr(address))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range claims {
			edge := " false"
			if c.Edge {
				edge = " true"
			}
			got = append(got, string(c.Kind)+" "+c.Node+edge)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("claims of %s (-want +got):\n%s", address, diff)
		}
	}
	on := func(node, address string) gateway.Endpoint {
		return gateway.Endpoint{Node: node, Address: netip.MustParseAddrPort(address), Ready: true}
	}
	for to, want := range map[string]struct {
		service   string
		endpoints []gateway.Endpoint
	}{
		"10.96.200.71:443": {"on-edge", []gateway.Endpoint{on("edge-a", "10.201.1.7:8443")}}, // none that a gateway could create itself
		"10.96.200.71:80":  {"on-edge", nil},                                                 // the slice has no such port
		"10.96.200.71:81":  {"on-edge", nil},
		"10.96.200.72:443": {"on-both", []gateway.Endpoint{on("edge-a", "10.201.1.7:8443"), on("", "10.202.1.7:8443")}},
		"10.96.200.73:443": {"by-hand", []gateway.Endpoint{on("", "192.0.2.1:8443")}},
		"10.96.200.74:443": {},
	} {
		service, endpoints, err := a.Endpoints(t.Context(), netip.MustParseAddrPort(to))
		if err != nil {
			t.Fatal(err)
		}
		if want.service != "" {
			want.service = w.namespace + "/" + want.service
		}
		if service != want.service {
			t.Errorf("%s is of Service %q, want %q", to, service, want.service)
		}
		byAddress := cmpopts.SortSlices(func(a, b gateway.Endpoint) bool { return a.Address.Compare(b.Address) < 0 })
		if diff := cmp.Diff(want.endpoints, endpoints, cmpopts.EquateComparable(netip.AddrPort{}), byAddress); diff != "" {
			t.Errorf("endpoints of %s (-want +got):\n%s", to, diff)
		}
	}
}
