package loadtest

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/procfs"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

const mb = 1e6

// memoryState is a state in which memory is sampled, once a second; peerRSS and peerAnon are the peer's values.
type memoryState struct{ text, peerRSS, peerAnon string }

// record samples components one after the other.
func (s memoryState) record(ctx context.Context, w *environment, parts ...string) error {
	for i := range len(parts) * w.size.Samples {
		part := parts[i/w.size.Samples]
		now, err := procfs.ReadMemory(w.cluster.PID(part))
		if err != nil {
			return fmt.Errorf("memory of %s: %w", part, err)
		}
		w.recorder.Record(measure{Text: s.text + ": RSS", Unit: results.Memory, Peer: s.peerRSS}, now.RSS/mb)
		w.recorder.Record(measure{Text: s.text + ": RssAnon", Unit: results.Memory, Peer: s.peerAnon}, now.Anonymous/mb)
		if err := poll.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	return nil
}

// measureMemory measures the memory of edgecore idle, then with pods, then with ConfigMaps as well, and of each cloudcore and hub server at
// the end: only one owns the node, only one leads the stream. The peer's values are those with a fake runtime.
func measureMemory(ctx context.Context, w *environment) error {
	spec := w.cluster.Spec()
	configs := &round{scenario: &scenario{object: "memory-configs"}, w: w, nodes: w.edges[:1], names: workload.Names("memory-configs", w.size.Held)}
	for _, state := range []struct {
		memoryState
		enter step
	}{
		{memoryState{"edgecore idle", "78-80", "16"}, nil},
		{memoryState{text: fmt.Sprintf("edgecore with %d real pods", w.size.Resident)}, launchResidents},
		{memoryState{fmt.Sprintf("edgecore with %d ConfigMaps as well", w.size.Held), "121", "25"}, inOrder(createObjects, mountObjects, awaitDelivered)},
	} {
		if err := inOrder(state.enter, settle)(ctx, configs); err != nil {
			return err
		}
		if err := state.record(ctx, w, w.edges[0]); err != nil {
			return err
		}
	}
	if err := (memoryState{"each cloudcore then", "98", "44"}).record(ctx, w, folder.Names("cloudcore", spec.Cloudcores)...); err != nil {
		return err
	}
	return memoryState{text: "each hub server then"}.record(ctx, w, folder.Names("hub", spec.Hubs)...)
}

// launchResidents launches pods, one after the other.
func launchResidents(ctx context.Context, r *round) error {
	for _, name := range workload.Names("memory", r.w.size.Resident) {
		if _, _, err := r.w.objects.LaunchPods(ctx, workload.PausePod(name, r.nodes[0], nil)); err != nil {
			return err
		}
	}
	return nil
}

func settle(ctx context.Context, r *round) error { return poll.Sleep(ctx, r.w.size.Settle) }

// measureServices measures the memory of a gateway whose kube-proxy watches Services and EndpointSlices at the local API: with hardly any in
// the cluster, then with many, each with one EndpointSlice of three endpoints on other nodes. They go with the cluster.
func measureServices(ctx context.Context, w *environment) error {
	n := w.size.Services
	had := 0
	err := poll.Until(ctx, "kube-proxy has its first rules", func(ctx context.Context) (bool, error) {
		had, _ = countProxyRules(ctx, w) // there is no map before
		return had > 0, nil
	})
	if err != nil {
		return err
	}
	if err := recordProxyMemory(ctx, w, "few Services"); err != nil {
		return err
	}
	err = workload.ForEach(ctx, workload.Names("services", n), func(ctx context.Context, i int, name string) error { return makeService(ctx, w, i, name) })
	if err != nil {
		return err
	}
	began := time.Now()
	err = poll.Until(ctx, fmt.Sprintf("kube-proxy has rules for %d Services", n), func(ctx context.Context) (bool, error) {
		has, err := countProxyRules(ctx, w)
		return err == nil && has >= had+n, err
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	if err := recordProxyMemory(ctx, w, fmt.Sprintf("%d Services", n)); err != nil {
		return err
	}
	w.recorder.Record(measure{Text: fmt.Sprintf("%d Services made → the gateway's kernel leads to the last", n), Unit: results.Time}, results.Milliseconds(took))
	return nil
}

func recordProxyMemory(ctx context.Context, w *environment, state string) error {
	if err := poll.Sleep(ctx, w.size.Settle); err != nil {
		return err
	}
	if err := (memoryState{text: "edgecore with kube-proxy and " + state}).record(ctx, w, w.edges[0]); err != nil {
		return err
	}
	return memoryState{text: "kube-proxy then, with " + state}.record(ctx, w, folder.ProxyName(w.edges[0]))
}

// countProxyRules counts the Service addresses for which the first gateway's kernel has rules.
func countProxyRules(ctx context.Context, w *environment) (int, error) {
	cmd, err := w.cluster.Command(ctx, w.edges[0], "nft", "list", "map", "ip", "kube-proxy", "service-ips")
	if err != nil {
		return 0, err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("read the rules of %s: %w: %s", w.edges[0], err, out)
	}
	return strings.Count(string(out), " : goto service-"), nil
}

// makeService creates a Service together with its endpoints, so that no controller does that at its own pace.
func makeService(ctx context.Context, w *environment, i int, name string) error {
	port := corev1.ServicePort{Name: "web", Port: 80}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{port}}}
	if _, err := w.kube.CoreV1().Services(workload.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make service %s: %w", name, err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "services"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &port.Name, Port: new(int32(8080))}},
	}
	for n := range 3 {
		address := fmt.Sprintf("198.18.%d.%d", n, 1+i%250) // reserved by RFC 2544
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	if _, err := w.kube.DiscoveryV1().EndpointSlices(workload.Namespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("make endpoints of %s: %w", name, err)
	}
	return nil
}
