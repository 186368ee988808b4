package cloud

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/streams/call"
)

const (
	// serverLossGrace is how long a server may be unreachable and count as the same: a connection was cut, and the server lives.
	serverLossGrace = 300 * time.Millisecond
	// notifyChunk is the number of nodes that are notified before each notifyPause, so that a large fleet does not
	// attach at once.
	notifyChunk = 500
	notifyPause = 200 * time.Millisecond
)

// hubWatcher keeps a connection to each server of the hub, only to detect when it breaks. The consumers of a server
// live in its memory, so the nodes whose consumer was there must attach again. By missing heartbeats alone they would
// find out after 6 to 9 s.
type hubWatcher struct {
	// servers are the configured URLs of the hub; other servers are not watched.
	servers []string
	dial    func(url string) (*nats.Conn, error)
	// ownedNodes lists the nodes that this cloudcore owns.
	ownedNodes func(ctx context.Context) ([]string, error)
	// notifyNode tells a node which server died. It must not block.
	notifyNode func(node, server string) error
	grace      time.Duration
	// lost receives the servers that are gone, and the cloudcores that have failed: requests of nodes to either may be lost.
	lost chan string
	log  *zap.Logger
}

// newHubWatcher creates the watcher of the hub's servers.
func (c *Cloud) newHubWatcher(nc *nats.Conn, objects cache.Cache, members *Members) *hubWatcher {
	return &hubWatcher{
		servers: c.cfg.Hub.URLs,
		dial: func(url string) (*nats.Conn, error) {
			cfg := c.cfg.Hub
			cfg.URLs = []string{url}
			// These connections carry nothing; announceLosses logs the loss of one once.
			return dialHub(cfg, "cloudcore "+c.cfg.ID+" watch", prometheus.NewCounter(prometheus.CounterOpts{}), zap.NewNop(), nats.IgnoreDiscoveredServers())
		},
		ownedNodes: func(ctx context.Context) ([]string, error) {
			var list corev1.NodeList
			if err := objects.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
				return nil, err
			}
			var own []string
			for i := range list.Items {
				if name := list.Items[i].Name; members.Owns(name) {
					own = append(own, name)
				}
			}
			return own, nil
		},
		notifyNode: func(node, server string) error {
			return call.SendCommand(nc, node, call.VerbDied, []byte(server))
		},
		grace: serverLossGrace, lost: make(chan string), log: c.log.Named("deaths"),
	}
}

// Start watches the servers until ctx ends and then returns nil.
func (d *hubWatcher) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, url := range d.servers {
		nc, err := d.dial(url)
		if err != nil {
			d.log.Warn("hub server not watched", zap.String("url", url), zap.Error(err))
			continue
		}
		g.Go(func() error {
			defer nc.Close()
			return watchServer(gctx, nc, d.grace, d.lost)
		})
	}
	g.Go(func() error { return d.announceLosses(gctx, d.lost) })
	return g.Wait()
}

// watchServer sends to died when the server behind a connection is gone, or was replaced by another process.
func watchServer(ctx context.Context, nc *nats.Conn, patience time.Duration, died chan<- string) error {
	changes := nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING)
	defer nc.RemoveStatusListener(changes)
	grace := time.NewTimer(patience)
	defer grace.Stop()
	name, id := nc.ConnectedServerName(), nc.ConnectedServerId()
	dead := func() bool {
		select {
		case died <- name:
			id = "" // report it once
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case status := <-changes:
			if status != nats.CONNECTED {
				grace.Reset(patience)
				continue
			}
			if now := nc.ConnectedServerId(); now != id {
				if id != "" && !dead() {
					return nil
				}
				name, id = nc.ConnectedServerName(), now
			}
		case <-grace.C:
			if nc.IsConnected() || id == "" {
				continue
			}
			if !dead() {
				return nil
			}
		}
	}
}

// announceLosses notifies the nodes of this cloudcore of each loss.
func (d *hubWatcher) announceLosses(ctx context.Context, died <-chan string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case server := <-died:
			nodes, err := d.ownedNodes(ctx)
			if err != nil {
				d.log.Warn("nodes not notified of a failure", zap.String("who", server), zap.Error(err))
				continue
			}
			d.log.Info("notifying nodes of a failure", zap.String("who", server), zap.Int("nodes", len(nodes)))
			if err := d.notifyNodes(ctx, server, nodes); err != nil {
				d.log.Warn("nodes not notified of a failure", zap.String("who", server), zap.Error(err))
			}
		}
	}
}

func (d *hubWatcher) notifyNodes(ctx context.Context, server string, nodes []string) error {
	for some := range slices.Chunk(nodes, notifyChunk) {
		for _, node := range some {
			if err := d.notifyNode(node, server); err != nil {
				return fmt.Errorf("tell %s: %w", node, err)
			}
		}
		if len(nodes) <= notifyChunk {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(notifyPause):
		}
	}
	return nil
}
