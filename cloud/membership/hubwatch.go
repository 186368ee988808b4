package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

const (
	// serverLossGrace is how long a server may be unreachable and count as the same: a connection was cut, and the server lives.
	serverLossGrace = 300 * time.Millisecond
	// notifyChunk is the number of nodes that are notified before each notifyPause, so that a large fleet does not
	// attach at once.
	notifyChunk = 500
	notifyPause = 200 * time.Millisecond
)

// HubWatcher keeps a connection to each server of the hub, only to detect when it breaks or when the server announces that
// it stops (lame duck mode). The consumers of a server live in its memory, so the nodes whose consumer was there must attach
// again. By missing heartbeats alone they would find out after 6 to 9 s.
type HubWatcher struct {
	// servers are the configured URLs of the hub; other servers are not watched.
	servers []string
	dial    func(url string, opts ...nats.Option) (*nats.Conn, error)
	// ownedNodes lists the nodes that this cloudcore owns.
	ownedNodes func(ctx context.Context) ([]string, error)
	nodes      NodeCommands
	// members are the replicas, whose watch may have been on a server that is gone.
	members interface{ RestartWatch() }
	grace   time.Duration
	// lost receives the servers that are gone, and the cloudcores that have failed: requests of nodes to either may be lost.
	// stopping receives the servers that announce their stop.
	lost, stopping chan string
	log            *zap.Logger
}

// NodeCommands tell a node about a server of the hub, by its name. They must not block.
type NodeCommands struct {
	// ServerLost says that its JetStream is gone, and what it had not answered.
	ServerLost func(node, server string) error
	// ServerStops says that it closes its links one by one. It comes before ServerLost.
	ServerStops func(node, server string) error
}

// NewHubWatcher creates the watcher of these servers, each of which dial connects to. ownedNodes lists the nodes that
// this replica owns; nodes tell one of them which server or replica is gone; members restart their watch when a server is.
func NewHubWatcher(servers []string, dial func(url string, opts ...nats.Option) (*nats.Conn, error), ownedNodes func(ctx context.Context) ([]string, error),
	nodes NodeCommands, members interface{ RestartWatch() }, log *zap.Logger,
) *HubWatcher {
	return &HubWatcher{
		servers: servers, dial: dial, ownedNodes: ownedNodes, nodes: nodes, members: members,
		grace: serverLossGrace, lost: make(chan string), stopping: make(chan string), log: log,
	}
}

// Lost returns the channel by which others report what is gone: its nodes are notified as of a server.
func (d *HubWatcher) Lost() chan<- string { return d.lost }

// Start watches the servers until ctx ends and then returns nil.
func (d *HubWatcher) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, url := range d.servers {
		stopping := make(chan struct{}, 1) // one: a server announces its stop once, and its name is looked up when it is received
		nc, err := d.dial(url, nats.LameDuckModeHandler(func(*nats.Conn) {
			select {
			case stopping <- struct{}{}:
			default:
			}
		}))
		if err != nil {
			d.log.Warn("hub server not watched", zap.String("url", url), zap.Error(err))
			continue
		}
		g.Go(func() error {
			defer nc.Close()
			return d.watchServer(gctx, nc, stopping)
		})
	}
	g.Go(func() error { return d.announceLosses(gctx) })
	return g.Wait()
}

// lossDetector decides when a hub server counts as lost, so that each loss is reported once.
type lossDetector struct {
	// name and id are those of the server that was connected last.
	name, id string
	// reported: its loss was reported, or there was no server yet that could be lost.
	reported bool
}

// observeConnected takes a connection to the server with the given name and id, both "" if it is lost again already. It returns the server
// that must have been lost meanwhile, as another process has taken its place, or "".
func (l *lossDetector) observeConnected(name, id string) (lost string) {
	if id == "" {
		// Which process it was is unknown. If it was the known one, its loss was not real; if not, it is one more that may be lost.
		l.reported = l.reported && l.name == ""
		return ""
	}
	if id != l.id && !l.reported {
		lost = l.name
	}
	l.name, l.id, l.reported = name, id, false
	return lost
}

// observeGraceEnd takes the end of the grace period, and returns the server that is lost, or "".
func (l *lossDetector) observeGraceEnd(connected bool) (lost string) {
	if connected || l.reported {
		return ""
	}
	l.reported = true
	return l.name
}

// observeLameDuck takes the announcement that the connected server stops: its JetStream has ended already. It returns the server that is
// lost, or "".
func (l *lossDetector) observeLameDuck(id string) (lost string) {
	if l.reported || id != l.id {
		return ""
	}
	l.reported = true
	return l.name
}

// watchServer reports when the server behind a connection announces that it stops (announced), is gone, or was replaced by another process.
func (d *HubWatcher) watchServer(ctx context.Context, nc *nats.Conn, announced <-chan struct{}) error {
	changes := nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING)
	defer nc.RemoveStatusListener(changes)
	grace := time.NewTimer(d.grace)
	defer grace.Stop()
	detector := lossDetector{name: nc.ConnectedServerName(), id: nc.ConnectedServerId(), reported: !nc.IsConnected()}
	for {
		var lost string
		report := d.lost
		select {
		case <-ctx.Done():
			return nil
		case status := <-changes:
			if status == nats.CONNECTED {
				lost = detector.observeConnected(nc.ConnectedServerName(), nc.ConnectedServerId())
			} else {
				grace.Reset(d.grace)
			}
		case <-announced:
			report = d.stopping
			lost = detector.observeLameDuck(nc.ConnectedServerId())
		case <-grace.C:
			lost = detector.observeGraceEnd(nc.IsConnected())
		}
		if lost == "" {
			continue
		}
		d.members.RestartWatch()
		select {
		case report <- lost:
		case <-ctx.Done():
			return nil
		}
	}
}

// announceLosses notifies the nodes of this cloudcore of each loss and each stop.
func (d *HubWatcher) announceLosses(ctx context.Context) error {
	for {
		what, notify := "failure", d.nodes.ServerLost
		var server string
		select {
		case <-ctx.Done():
			return nil
		case server = <-d.lost:
		case server = <-d.stopping:
			what, notify = "planned stop", func(node, server string) error {
				return errors.Join(d.nodes.ServerStops(node, server), d.nodes.ServerLost(node, server))
			}
		}
		log := d.log.With(zap.String("what", what), zap.String("who", server))
		nodes, err := d.ownedNodes(ctx)
		if err != nil {
			log.Warn("nodes not notified", zap.Error(err))
			continue
		}
		log.Info("notifying nodes", zap.Int("nodes", len(nodes)))
		if err := notifyNodes(ctx, server, nodes, notify); err != nil {
			log.Warn("nodes not notified", zap.Error(err))
		}
	}
}

func notifyNodes(ctx context.Context, server string, nodes []string, notify func(node, server string) error) error {
	for some := range slices.Chunk(nodes, notifyChunk) {
		for _, node := range some {
			if err := notify(node, server); err != nil {
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
