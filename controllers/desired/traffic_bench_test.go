package desired_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/test/kit"
)

const (
	trafficNodes  = 1000
	trafficGroups = 100
	trafficSlices = 10
)

// groupsByNumber puts gateways that follow each other into one group.
type groupsByNumber struct{}

func (groupsByNumber) GroupOf(node string) (group string, known bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(node, "gw-"))
	return fmt.Sprint(n / (trafficNodes / trafficGroups)), err == nil
}

// BenchmarkChangedEndpoint measures what one changed endpoint of a Service costs that has an endpoint on each of 1,000 gateways, all of which
// follow slices: messages, and bytes of JSON before compression, until the last one is stored.
func BenchmarkChangedEndpoint(b *testing.B) {
	for name, tt := range map[string]struct {
		service func(*corev1.Service)
		want    int64
	}{
		"all": {func(*corev1.Service) {}, trafficNodes},
		"group": {func(s *corev1.Service) {
			s.Annotations = map[string]string{"apps.kubeedge.io/service-topology": "range-nodegroup"}
		}, trafficNodes / trafficGroups},
		"node":         {annotated("node"), 1},
		"localTraffic": {func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }, 1},
	} {
		b.Run(name, func(b *testing.B) { benchmarkChangedEndpoint(b, tt.service, tt.want) })
	}
}

func benchmarkChangedEndpoint(b *testing.B, change func(*corev1.Service), want int64) {
	b.Helper()
	h := startHeirWith(b, desired.Config{Groups: groupsByNumber{}}, trafficNodes, nil)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "fleet", UID: "s"}}
	change(service)
	h.source(&corev1.Service{}).Add(service)
	source, all := h.source(&discoveryv1.EndpointSlice{}), []*discoveryv1.EndpointSlice{}
	for i := range trafficSlices {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("fleet-", i), UID: "s", Labels: map[string]string{discoveryv1.LabelServiceName: "fleet"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for j := range trafficNodes / trafficSlices {
			n := i*trafficNodes/trafficSlices + j
			pod := fmt.Sprintf("fleet-%05d", n)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.42.%d.%d", n/200, n%200+2)}, NodeName: new(h.nodes[n]),
				Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod, UID: "2f1f6c1e-58a3-4a6b-9d0a-0123456789ab"},
			})
		}
		source.Add(slice)
		all = append(all, slice)
	}
	var messages, size atomic.Int64
	count := func(m wire.Message) {
		if m.Key.Resource == "endpointslices" {
			messages.Add(1)
			size.Add(int64(len(m.Object)))
		}
	}
	h.stream.mu.Lock()
	h.stream.onPublish = count
	h.stream.mu.Unlock()
	h.stream.release()
	h.takeOver()
	kit.Within(b, 3*time.Minute, "all gateways have all slices", func() bool { return messages.Load() >= trafficNodes*trafficSlices && h.engine.Idle() })
	first := float64(size.Load()) / 1e6
	messages.Store(0)
	size.Store(0)
	round := int64(0)
	for b.Loop() {
		i := int(round) % trafficSlices
		if round++; i == 0 && round > 1 {
			b.StopTimer()
			<-time.After(1100 * time.Millisecond) // a slice is sent once a second
			b.StartTimer()
		}
		next := all[i].DeepCopy()
		next.Generation++
		next.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		next.Endpoints[50].Addresses = []string{fmt.Sprintf("10.43.%d.%d", round/250, round%250)}
		all[i] = next
		source.Modify(next)
		kit.Within(b, time.Minute, "the change is sent", func() bool { return messages.Load() >= round*want })
	}
	kit.Within(b, time.Minute, "nothing else is to be done", func() bool { return h.engine.Idle() })
	b.ReportMetric(first, "first-MB")
	b.ReportMetric(float64(messages.Load())/float64(round), "messages/op")
	b.ReportMetric(float64(size.Load())/float64(round), "bytes/op")
}
