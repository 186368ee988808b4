package cloud

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/tunnel"
)

// lookupTimeout bounds a read of the cache, which blocks only until it has been filled.
const lookupTimeout = 2 * time.Second

// buildGateway creates the parts that connect to nodes: the dialer of tunnels, and the gateway in front of it.
func (c *Cloud) buildGateway(k components) (*gateway.Gateway, []lifecycle.Part, error) {
	dialer, err := tunnel.NewDialer(k.tunnels, tunnel.Config{}, tunnel.NewMetrics(c.metrics), c.log)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnels: %w", err)
	}
	judge, err := gateway.NewKubeAuthorizer(k.clients)
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	direct, err := c.directConfig()
	if err != nil {
		return nil, nil, err
	}
	g := c.cfg.Gateway
	trusted, err := g.Networks()
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	way, err := gateway.New(gateway.Config{
		Socket: g.Socket, Address: g.Address, ScrapeAddress: g.ScrapeAddress, ReusePort: g.ReusePort, Direct: direct, TrustedNetworks: trusted,
		CertFile: g.CertFile, KeyFile: g.KeyFile, ClientCAFile: g.ClientCAFile,
		KubeletCAFile: g.KubeletCAFile, KubeletCertFile: g.KubeletCertFile, KubeletKeyFile: g.KubeletKeyFile,
		BlockedReason: k.ids.shutReason,
	}, nodeCache{k.objects}, k.addresses, tunnelDialer{dialer}, judge, c.metrics, c.log.Named("gateway"))
	if err != nil {
		return nil, nil, err
	}
	watch := func(ctx context.Context) error { return watchNodes(ctx, k.objects, way.OnNodeChanged) }
	return way, []lifecycle.Part{
		{Name: "tunnels", Start: dialer.Start},
		{Name: "gateway-nodes", Start: watch},
		{Name: "gateway", Start: way.Start, Ready: way.Ready()},
	}, nil
}

// tunnelDialer implements gateway.Tunnels.
type tunnelDialer struct{ *tunnel.Dialer }

func (t tunnelDialer) Dial(ctx context.Context, node string, port uint16) (net.Conn, error) {
	conn, err := t.Dialer.Dial(ctx, node, port)
	if err != nil {
		return nil, err // and not a nil *tunnel.Conn in an interface
	}
	return conn, nil
}

func (t tunnelDialer) DialAddress(ctx context.Context, node string, to netip.AddrPort) (net.Conn, error) {
	conn, err := t.Dialer.DialAddress(ctx, node, to)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// nodeCache implements gateway.Nodes.
type nodeCache struct{ objects cache.Cache }

func (n nodeCache) Node(ctx context.Context, name string) (gateway.Node, bool) {
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

// indexNodes must be called before the cache starts.
func indexNodes(ctx context.Context, objects cache.Cache) error {
	return objects.IndexField(ctx, &corev1.Node{}, nodesByTunnelAddress, func(node client.Object) []string {
		return []string{wire.TunnelAddress(node.GetName()).String()}
	})
}

func (n nodeCache) ByTunnelAddress(ctx context.Context, address netip.Addr) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var list corev1.NodeList
	if err := n.objects.List(ctx, &list, client.MatchingFields{nodesByTunnelAddress: address.String()}); err != nil || len(list.Items) != 1 {
		return "", false
	}
	return list.Items[0].Name, true
}

// watchNodes calls changed for each change of a Node until ctx ends.
func watchNodes(ctx context.Context, objects cache.Cache, changed func(name string, was gateway.Node, is *gateway.Node)) error {
	informer, err := objects.GetInformer(ctx, &corev1.Node{})
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
