// Package endpointsync keeps a gateway's own pods in its endpoint slices up to date while the cloud cannot.
//
// It changes only the entries of this node's pods, only in slices that Kubernetes made from a Service, and only the node's copy:
// nothing of it is reported. The cloud delivers the same state, a little later.
package endpointsync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// sliceManager marks the slices that Kubernetes creates from a Service's selector; slices of other writers are left unchanged.
const sliceManager = "endpointslice-controller.k8s.io"

// settleDelay is how long changes are collected before slices are written: a starting pod changes several times at
// once, and each write of a slice is synced to the disk.
const settleDelay = 100 * time.Millisecond

// retryDelay is the pause after which a write that a full disk refused is retried.
const retryDelay = time.Second

// Syncer corrects the slices of one node. A gateway that boots without a link gives its pods new addresses, and the cloud, whose
// slices are on its disk, cannot learn of them. A pod that becomes unready while the link is down would stay in its Service. The
// node has the newest state of its own pods, so it is always right about them.
type Syncer struct {
	node  string
	store *store.Store
	log   *zap.Logger
	// slicesByPod holds the slices that name an own pod, by pod. Only one goroutine uses it.
	slicesByPod map[wire.Key]map[wire.Key]bool
}

// New returns the syncer of a node.
func New(node string, st *store.Store, log *zap.Logger) *Syncer {
	return &Syncer{node: node, store: st, log: log, slicesByPod: map[wire.Key]map[wire.Key]bool{}}
}

// Start runs until ctx ends and then returns nil.
func (e *Syncer) Start(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := e.followChanges(ctx); err != nil && ctx.Err() == nil {
			e.log.Warn("endpoints of own pods not followed, starting again", zap.Error(err))
		}
	}
	return nil
}

// followChanges runs until ctx ends or it was too slow for the store's events.
func (e *Syncer) followChanges(ctx context.Context) error {
	clear(e.slicesByPod)
	list, revision := e.store.List(discoveryv1.GroupName, "endpointslices", "")
	from, err := e.store.Watch(discoveryv1.GroupName, "endpointslices", "", revision)
	if err != nil {
		return fmt.Errorf("watch endpoint slices: %w", err)
	}
	defer from.Stop()
	pods, err := e.store.Watch("", "pods", "", revision)
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	defer pods.Stop()
	due := map[wire.Key]bool{}
	for _, entry := range list {
		due[entry.Key] = true
	}
	slicesChanged, podsChanged := from.Events(), pods.Events()
	settled, retry := time.NewTimer(0), time.NewTimer(0)
	defer settled.Stop()
	defer retry.Stop()
	waiting := true                // settled will fire
	refused := map[wire.Key]bool{} // retried when retry fires
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-slicesChanged:
			if !ok {
				return from.Err()
			}
			due[event.Entry.Key] = true
		case event, ok := <-podsChanged:
			if !ok {
				return pods.Err()
			}
			maps.Copy(due, e.slicesByPod[event.Entry.Key])
		case <-settled.C:
			for key := range due {
				e.reconcileSlice(ctx, key, refused)
			}
			clear(due)
			waiting = false
			if len(refused) > 0 {
				retry.Reset(retryDelay)
			}
		case <-retry.C:
			maps.Copy(due, refused)
		}
		if len(due) > 0 && !waiting {
			settled.Reset(settleDelay)
			waiting = true
		}
	}
}

// reconcileSlice corrects one slice. If another writer came first, that write's event causes the next attempt. A slice that
// the disk refused is added to refused, and otherwise removed.
func (e *Syncer) reconcileSlice(ctx context.Context, key wire.Key, refused map[wire.Key]bool) {
	again := refused[key]
	delete(refused, key)
	for pod, in := range e.slicesByPod {
		if delete(in, key); len(in) == 0 {
			delete(e.slicesByPod, pod)
		}
	}
	entry, err := e.store.Get(key)
	if err != nil {
		return // deleted
	}
	var slice discoveryv1.EndpointSlice
	if err := json.Unmarshal(entry.Object, &slice); err != nil {
		e.log.Warn("endpoint slice not read", zap.Stringer("key", key), zap.Error(err))
		return
	}
	if slice.Labels[discoveryv1.LabelManagedBy] != sliceManager {
		return
	}
	if !e.correctSlice(&slice, key) {
		return
	}
	object, err := json.Marshal(slice)
	if err == nil {
		_, err = e.store.Put(ctx, key, object, &entry.Revision)
	}
	if err == nil || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) || ctx.Err() != nil {
		return
	}
	refused[key] = true
	if !again {
		e.log.Warn("endpoint slice not written, trying again", zap.Stringer("key", key), zap.Duration("retry", retryDelay), zap.Error(err))
	}
}

// correctSlice corrects the entries of this node's pods in a slice, records that the slice names them, and reports whether
// anything changed.
func (e *Syncer) correctSlice(slice *discoveryv1.EndpointSlice, key wire.Key) (changed bool) {
	service := e.loadService(slice)
	for i := range slice.Endpoints {
		endpoint := &slice.Endpoints[i]
		ref := endpoint.TargetRef
		if ref == nil || ref.Kind != "Pod" || ptr.Deref(endpoint.NodeName, "") != e.node {
			continue
		}
		of := wire.Key{Resource: "pods", Namespace: slice.Namespace, Name: ref.Name}
		if e.slicesByPod[of] == nil {
			e.slicesByPod[of] = map[wire.Key]bool{}
		}
		e.slicesByPod[of][key] = true
		var pod corev1.Pod
		entry, err := e.store.Get(of)
		if err != nil || entry.UID != string(ref.UID) || json.Unmarshal(entry.Object, &pod) != nil {
			continue // not stored here: the cloud's entry stays
		}
		if correctEndpoint(endpoint, slice.AddressType, &pod, service != nil && service.Spec.PublishNotReadyAddresses) {
			changed = true
		}
	}
	return changed
}

func (e *Syncer) loadService(slice *discoveryv1.EndpointSlice) *corev1.Service {
	entry, err := e.store.Get(wire.Key{Resource: "services", Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]})
	if err != nil {
		return nil
	}
	var service corev1.Service
	if err := json.Unmarshal(entry.Object, &service); err != nil {
		return nil
	}
	return &service
}

// correctEndpoint sets the address and the conditions of an endpoint from its pod, by the rules of Kubernetes' own controller.
func correctEndpoint(endpoint *discoveryv1.Endpoint, family discoveryv1.AddressType, pod *corev1.Pod, publishNotReady bool) (changed bool) {
	var addresses []string
	for _, ip := range pod.Status.PodIPs {
		if ipFamily(ip.IP) == family {
			addresses = append(addresses, ip.IP)
		}
	}
	terminating := pod.DeletionTimestamp != nil
	serving := len(addresses) > 0 && isPodReady(pod)
	conditions := discoveryv1.EndpointConditions{
		Ready: new(len(addresses) > 0 && publishNotReady || serving && !terminating), Serving: &serving, Terminating: &terminating,
	}
	if len(addresses) > 0 {
		addresses = addresses[:1] // as in Kubernetes: one address each
	} else {
		addresses = endpoint.Addresses // at least one is required
	}
	if slices.Equal(addresses, endpoint.Addresses) && ptr.Equal(conditions.Ready, endpoint.Conditions.Ready) &&
		ptr.Equal(conditions.Serving, endpoint.Conditions.Serving) && ptr.Equal(conditions.Terminating, endpoint.Conditions.Terminating) {
		return false
	}
	endpoint.Addresses, endpoint.Conditions = addresses, conditions
	return true
}

func ipFamily(text string) discoveryv1.AddressType {
	if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func isPodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
