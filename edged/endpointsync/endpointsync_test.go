package endpointsync_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/endpointsync"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// endpointFixture is a store with the slice of a Service, and a running Syncer.
type endpointFixture struct {
	*testing.T
	store *store.Store
	slice wire.Key
}

func newEndpointFixture(t *testing.T, cfg store.Config) *endpointFixture {
	t.Helper()
	js, err := jetstream.New(leaftest.StartLeaf(t, leaf.Config{}).Client())
	kit.Must(t, err)
	st, err := store.Open(t.Context(), js, cfg, zaptest.NewLogger(t))
	kit.Must(t, err)
	w := &endpointFixture{T: t, store: st, slice: wire.Key{Group: discoveryv1.GroupName, Resource: "endpointslices", Namespace: "default", Name: "web-1"}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return endpointsync.New("edge-1", st, zaptest.NewLogger(t)).Start(ctx) })
	t.Cleanup(func() {
		cancel()
		kit.Must(t, g.Wait())
	})
	return w
}

func (w *endpointFixture) putObject(key wire.Key, object any) {
	w.Helper()
	data, err := json.Marshal(object)
	kit.Must(w, err)
	_, err = w.store.Put(w.Context(), key, data, nil)
	kit.Must(w, err)
}

// putPod stores a pod of this node; ip "" is one that has not started.
func (w *endpointFixture) putPod(name, uid, ip string, ready bool) {
	w.Helper()
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}}
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}, {IP: "fd00::1"}}
	}
	if ready {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	w.putObject(wire.Key{Resource: "pods", Namespace: "default", Name: name}, p)
}

// putSlice stores the slice as the cloud has it: one pod of this node, one of another, and an address that is no pod's.
func (w *endpointFixture) putSlice(manager string) {
	w.Helper()
	endpoint := func(address, node, pod, uid string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{
			Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod, UID: types.UID(uid)},
		}
	}
	w.putObject(w.slice, discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", UID: "s", ResourceVersion: "7", Labels: map[string]string{
			discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: manager,
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{
			endpoint("10.42.0.2", "edge-1", "web-a", "a"), endpoint("10.42.0.3", "edge-2", "web-b", "b"), endpoint("10.42.0.4", "edge-1", "web-c", "old"),
			{Addresses: []string{"192.0.2.1"}},
		},
	})
}

// wantEndpoints waits until the slice has these endpoints: address, and whether ready and serving.
func (w *endpointFixture) wantEndpoints(want ...string) {
	w.Helper()
	kit.Succeeds(w, 30*time.Second, func() error {
		entry, err := w.store.Get(w.slice)
		kit.Must(w, err)
		var slice discoveryv1.EndpointSlice
		kit.Must(w, json.Unmarshal(entry.Object, &slice))
		if slice.ResourceVersion != "7" {
			w.Errorf("the cloud's version became %q", slice.ResourceVersion)
		}
		var got []string
		for _, e := range slice.Endpoints {
			got = append(got, fmt.Sprint(e.Addresses[0], " ", ptr.Deref(e.Conditions.Ready, true), " ", ptr.Deref(e.Conditions.Serving, true)))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("endpoints (-want +got):\n%s", diff)
		}
		return nil
	})
}

const otherEndpoint = "10.42.0.3 true true"

// TestSyncer_FollowsOwnPods: a slice's entries of the node's pods follow these pods, at any state of the cloud's
// slice; the entries of other pods stay.
func TestSyncer_FollowsOwnPods(t *testing.T) {
	const manager = "endpointslice-controller.k8s.io"
	w := newEndpointFixture(t, store.Config{})
	w.putPod("web-c", "new", "10.42.0.99", true) // the slice names an earlier pod of that name
	w.putSlice(manager)
	w.wantEndpoints("10.42.0.2 true true", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
	w.putPod("web-a", "a", "10.42.0.7", true) // after a reboot
	w.wantEndpoints("10.42.0.7 true true", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
	w.putPod("web-a", "a", "10.42.0.7", false)
	w.wantEndpoints("10.42.0.7 false false", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
	w.putSlice(manager) // the cloud is behind
	w.wantEndpoints("10.42.0.7 false false", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
	w.putPod("web-a", "a", "", false) // it starts again
	w.putSlice(manager)
	w.wantEndpoints("10.42.0.2 false false", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
	w.putObject(wire.Key{Resource: "services", Namespace: "default", Name: "web"}, corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: corev1.ServiceSpec{PublishNotReadyAddresses: true},
	})
	w.putPod("web-a", "a", "10.42.0.8", false)
	w.wantEndpoints("10.42.0.8 true false", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
}

// TestSyncer_LeavesForeignSlices: slices that users or other controllers write are unchanged.
func TestSyncer_LeavesForeignSlices(t *testing.T) {
	w := newEndpointFixture(t, store.Config{})
	w.putPod("web-a", "a", "10.42.0.7", true)
	w.putSlice("somebody")
	before := w.store.Revision()
	w.putPod("web-a", "a", "10.42.0.8", false)
	w.putSlice("endpointslice-controller.k8s.io")
	w.wantEndpoints("10.42.0.8 false false", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
	if n := w.store.Revision() - before; n != 3 {
		t.Errorf("%d writes, want the pod, the slice and its correction", n)
	}
}

// TestSyncer_RetriesAfterFullDisk: after a moment of a full disk a gateway does not keep sending to an unready pod
// until the pod's next change.
func TestSyncer_RetriesAfterFullDisk(t *testing.T) {
	const room = 1000
	var left, refused atomic.Int64 // writes that the disk still accepts
	left.Store(room)
	w := newEndpointFixture(t, store.Config{CheckWritable: func() error {
		if left.Add(-1) < 0 {
			refused.Add(1)
			return errors.New("full")
		}
		return nil
	}})
	before := w.store.Revision()
	w.putPod("web-a", "a", "10.42.0.2", true)
	w.putSlice("endpointslice-controller.k8s.io")
	kit.Succeeds(t, time.Minute, func() error {
		if n := w.store.Revision() - before; n != 3 {
			return fmt.Errorf("%d writes, want the pod, the slice and its correction", n)
		}
		return nil
	})
	left.Store(1) // for the pod alone
	w.putPod("web-a", "a", "10.42.0.2", false)
	kit.Succeeds(t, time.Minute, func() error {
		if n := refused.Load(); n < 2 {
			return fmt.Errorf("%d writes were refused", n)
		}
		return nil
	})
	left.Store(room)
	w.wantEndpoints("10.42.0.2 false false", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
}

// TestSyncer_RespectsTheShare: a slice that the cloud has cut to the gateway's share is corrected and never extended, also by an own pod
// that an earlier share named.
func TestSyncer_RespectsTheShare(t *testing.T) {
	w := newEndpointFixture(t, store.Config{})
	w.putPod("web-a", "a", "10.42.0.2", true)
	w.putSlice("endpointslice-controller.k8s.io")
	w.wantEndpoints("10.42.0.2 true true", otherEndpoint, "10.42.0.4 true true", "192.0.2.1 true true")
	node := "edge-1"
	share := discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", UID: "s", ResourceVersion: "7", Labels: map[string]string{
			discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.42.0.2"}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-a", UID: "a"},
		}},
	}
	w.putObject(w.slice, share)
	w.putPod("web-a", "a", "10.42.0.9", true)
	w.wantEndpoints("10.42.0.9 true true")
	share.Endpoints = []discoveryv1.Endpoint{} // nothing is left for this gateway
	w.putObject(w.slice, share)
	w.putPod("web-a", "a", "10.42.0.10", true)
	w.putPod("web-b", "b", "10.42.0.11", true)
	before := w.store.Revision()
	witness := w.slice
	witness.Name = "web-2"
	share.Endpoints = []discoveryv1.Endpoint{{
		Addresses: []string{"10.42.0.1"}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web-a", UID: "a"},
	}}
	share.Name = witness.Name
	w.putObject(witness, share)
	kit.Succeeds(w, 30*time.Second, func() error { // the Syncer has handled what came before
		if n := w.store.Revision() - before; n != 2 {
			return fmt.Errorf("%d writes, want the witness and its correction", n)
		}
		return nil
	})
	w.wantEndpoints()
}
