package addressindex

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/gateway"
)

// Nodes is a gateway.Nodes: it answers from the Nodes in a cache.
type Nodes struct{ objects cache.Cache }

// NewNodes adds the index to a cache, before it starts.
func NewNodes(ctx context.Context, objects cache.Cache) (Nodes, error) {
	err := objects.IndexField(ctx, &corev1.Node{}, nodesByTunnelAddress, func(node client.Object) []string {
		return []string{wire.TunnelAddress(node.GetName()).String()}
	})
	return Nodes{objects: objects}, err
}

// Node implements gateway.Nodes.
func (n Nodes) Node(ctx context.Context, name string) (gateway.Node, bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	object := &corev1.Node{}
	if err := n.objects.Get(ctx, client.ObjectKey{Name: name}, object); err != nil {
		return gateway.Node{}, false
	}
	return gateway.NodeOf(object), true
}

// nodesByTunnelAddress is the name of the index of Nodes by their wire.TunnelAddress.
const nodesByTunnelAddress = "tunnelAddress"

// ByTunnelAddress implements gateway.Nodes.
func (n Nodes) ByTunnelAddress(ctx context.Context, address netip.Addr) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var list corev1.NodeList
	if err := n.objects.List(ctx, &list, client.MatchingFields{nodesByTunnelAddress: address.String()}); err != nil || len(list.Items) != 1 {
		return "", false
	}
	return list.Items[0].Name, true
}

// Follow calls changed for each change of a Node until ctx ends; is is nil for one that was deleted.
func (n Nodes) Follow(ctx context.Context, changed func(name string, was gateway.Node, is *gateway.Node)) error {
	informer, err := n.objects.GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, after any) {
			is := gateway.NodeOf(after.(*corev1.Node))
			changed(after.(*corev1.Node).Name, gateway.NodeOf(before.(*corev1.Node)), &is)
		},
		DeleteFunc: func(object any) {
			if missed, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = missed.Obj
			}
			if node, ok := object.(*corev1.Node); ok {
				changed(node.Name, gateway.NodeOf(node), nil)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	<-ctx.Done()
	return informer.RemoveEventHandler(registration)
}
