package exercise

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/measure"
	"github.com/frond-edge/frond/loadtest/plan"
)

// servicePort is that of all Services.
const servicePort = 80

func serviceName(i int) string { return fmt.Sprintf("service-%05d", i) }

// endpointAddress returns the address that says by which operation an endpoint was moved: 10.0.0.0/8 holds 16 million of them.
func endpointAddress(sequence int64) string {
	return netip.AddrFrom4([4]byte{10, byte(sequence >> 16), byte(sequence >> 8), byte(sequence)}).String() //nolint:mnd,gosec // three bytes
}

// sequenceOf returns the operation that an address stands for.
func sequenceOf(address string) (int64, bool) {
	parsed, err := netip.ParseAddr(address)
	if err != nil || !parsed.Is4() || parsed.As4()[0] != 10 { //nolint:mnd // 10.0.0.0/8
		return 0, false
	}
	b := parsed.As4()
	return int64(b[1])<<16 | int64(b[2])<<8 | int64(b[3]), true
}

// serviceSet are the Services of a run.
type serviceSet struct {
	*workload
	// followed says that gateways are sent EndpointSlices.
	followed bool
	// turns order the changes of the EndpointSlice of each Service that was created.
	turns []*sync.Mutex
}

// moveEndpoints creates the Services that are missing, and then moves one endpoint after the other.
func (s *serviceSet) moveEndpoints(ctx context.Context, p plan.Services, limit time.Duration, into *measure.Histogram) error {
	begun := measure.NewHistogram(time.Now()) // of the creations, which the phase does not measure
	var all sync.WaitGroup
	for i := range p.Count {
		if i >= len(s.turns) {
			s.turns = append(s.turns, &sync.Mutex{})
			all.Go(func() { s.createService(ctx, i, begun) })
		}
	}
	all.Wait()
	_ = s.await(ctx, limit, func() bool { return s.tracker.Outstanding() == 0 }) // what has not ended is missing
	return s.atRate(ctx, max(1, int(p.PerSecond*p.For.Seconds())), p.PerSecond, func(ctx context.Context, i int, due time.Time) {
		s.moveEndpoint(ctx, i%p.Count, due, into)
	})
}

// createService creates a Service and its EndpointSlice, and tracks it at all gateways.
func (s *serviceSet) createService(ctx context.Context, i int, into *measure.Histogram) {
	name, labels := serviceName(i), map[string]string{names.LabelLoadtestRun: s.run}
	s.request(ctx, "create Service", func() error {
		_, err := s.kube.CoreV1().Services(s.namespace).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: servicePort}}}, // without a selector: nobody else makes slices
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	port, portName := int32(servicePort), "http"
	s.trackAtGateways(ctx, "create EndpointSlice", i, time.Now(), into, func(address string) error {
		_, err := s.kube.DiscoveryV1().EndpointSlices(s.namespace).Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
				names.LabelLoadtestRun: s.run, discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "loadtest.frond.io",
			}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
			Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		}, metav1.CreateOptions{})
		return err
	})
}

// moveEndpoint moves the endpoint of a Service, and tracks that at all gateways.
func (s *serviceSet) moveEndpoint(ctx context.Context, i int, due time.Time, into *measure.Histogram) {
	s.turns[i].Lock() // two moves at a time could be made in another order than they were numbered
	defer s.turns[i].Unlock()
	s.trackAtGateways(ctx, "move endpoint", i, due, into, func(address string) error {
		patch := fmt.Sprintf(`{"endpoints":[{"addresses":[%q]}]}`, address)
		_, err := s.kube.DiscoveryV1().EndpointSlices(s.namespace).Patch(ctx, serviceName(i), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
}

// trackAtGateways writes an EndpointSlice with the address of a new operation, and tracks the operation until each gateway holds it, if
// gateways are sent EndpointSlices at all.
func (s *serviceSet) trackAtGateways(ctx context.Context, what string, i int, due time.Time, into *measure.Histogram, write func(address string) error) {
	sequence := s.sequence.Add(1)
	var objects []string
	if s.followed {
		for _, g := range s.swarm.Gateways() {
			objects = append(objects, sliceObject(g.Name(), serviceName(i)))
			s.tracker.Begin(objects[len(objects)-1], sequence, due, into)
		}
	}
	if s.request(ctx, what, func() error { return write(endpointAddress(sequence)) }) {
		return
	}
	for _, object := range objects {
		s.tracker.Drop(object, sequence)
	}
}

// sliceObject is the name of an EndpointSlice at a gateway for the tracker.
func sliceObject(node, slice string) string { return node + " slice " + slice }

// observeSlice ends the operations up to that of an EndpointSlice which a gateway has stored.
func (s *serviceSet) observeSlice(node string, m wire.Message, at time.Time) {
	var slice struct {
		Endpoints []struct {
			Addresses []string `json:"addresses"`
		} `json:"endpoints"`
	}
	if json.Unmarshal(m.Object, &slice) != nil || len(slice.Endpoints) != 1 || len(slice.Endpoints[0].Addresses) != 1 {
		return // the operation is missing
	}
	if sequence, ok := sequenceOf(slice.Endpoints[0].Addresses[0]); ok {
		s.tracker.End(sliceObject(node, m.Key.Name), sequence, at)
	}
}
