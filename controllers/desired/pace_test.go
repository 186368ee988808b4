package desired_test

import (
	"fmt"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
)

func sliceKey(namespace, name string) wire.Key {
	return wire.Key{Group: discoveryv1.GroupName, Resource: "endpointslices", Namespace: namespace, Name: name}
}

// createEndpoints creates an EndpointSlice with one endpoint.
func (w *engineEnv) createEndpoints(name string) *discoveryv1.EndpointSlice {
	w.Helper()
	slice, err := w.client.DiscoveryV1().EndpointSlices(w.ns).Create(w.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.9.0.1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return slice
}

// setEndpoints gives the slice's endpoint another address.
func (w *engineEnv) setEndpoints(slice *discoveryv1.EndpointSlice, address string) *discoveryv1.EndpointSlice {
	w.Helper()
	slice.Endpoints[0].Addresses = []string{address}
	slice, err := w.client.DiscoveryV1().EndpointSlices(w.ns).Update(w.Context(), slice, metav1.UpdateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return slice
}

// countPublished returns how often an object was published, to all nodes.
func (w *engineEnv) countPublished(key wire.Key) (sum int) {
	w.publisher.mu.Lock()
	defer w.publisher.mu.Unlock()
	for _, n := range w.publisher.count[key] {
		sum += n
	}
	return sum
}

// TestEngine_PacesASliceThatFlaps: a slice that changes all the time is published at most once a second to each node, and
// its last state is.
func TestEngine_PacesASliceThatFlaps(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	nodes := []string{w.createNode("a"), w.createNode("b"), w.createNode("c")}
	for _, node := range nodes {
		w.eventuallyMessage(node, wire.SnapshotMarker(), "the first publication is complete", isApplied)
	}
	slice, key := w.createEndpoints("flapping"), sliceKey(w.ns, "flapping")
	began := time.Now()
	for i := range 60 {
		slice = w.setEndpoints(slice, fmt.Sprintf("10.9.1.%d", i+1))
		<-time.After(20 * time.Millisecond)
	}
	for _, node := range nodes {
		w.eventuallyMessage(node, key, "the last state", func(m wire.Message) bool { return m.Version == slice.ResourceVersion })
	}
	// One for the creation, and one for each second that began since.
	if got, most := w.countPublished(key), len(nodes)*(2+int(time.Since(began)/time.Second)); got > most {
		t.Errorf("%d publications of 61 changes, want at most %d", got, most)
	}
}
