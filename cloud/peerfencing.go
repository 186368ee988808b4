package cloud

import (
	"context"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/cloud/identity"
)

// peerFencer closes the hub connections of a replica that is missed: one that was stopped, or whose machine is gone. To the hub it is
// there until it has left two pings unanswered, for 10 to 15 s, and so long it is asked what others should answer: calls of nodes,
// and whether a link may come in. One that lives after all connects again.
type peerFencer struct {
	failed <-chan failedPeer
	// closeConn closes a connection and says whether there was one.
	closeConn func(ctx context.Context, server string, client uint64) (bool, error)
	// lost tells the nodes, so that they ask again what the replica has not answered.
	lost        chan<- string
	closedConns prometheus.Counter
	log         *zap.Logger
}

func newPeerFencer(m <-chan failedPeer, kick func(context.Context, string, uint64) (bool, error), died chan<- string, metrics prometheus.Registerer, log *zap.Logger) *peerFencer {
	s := &peerFencer{
		failed: m, closeConn: kick, lost: died, log: log,
		closedConns: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "frond", Name: "replica_connections_closed_total", Help: "Hub connections of failed cloudcore replicas that this replica closed.",
		}),
	}
	metrics.MustRegister(s.closedConns)
	return s
}

// Start works until ctx ends and then returns nil.
func (s *peerFencer) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case gone := <-s.failed:
			s.fencePeer(ctx, gone)
		}
	}
}

// fencePeer closes what there is, and then lets the nodes ask again: each other replica does the same, and twice is harmless.
func (s *peerFencer) fencePeer(ctx context.Context, gone failedPeer) {
	var closed atomic.Int32
	var g errgroup.Group // a server that died with the replica answers nobody
	for _, l := range gone.links {
		g.Go(func() error {
			there, err := s.closeConn(ctx, l.Server, l.Client)
			if there {
				closed.Add(1)
				s.closedConns.Inc()
			}
			return err
		})
	}
	err := g.Wait()
	s.log.Info("a replica is missed", zap.String("replica", gone.member), zap.Int32("closed", closed.Load()), zap.Error(err))
	select {
	case s.lost <- gone.member:
	case <-ctx.Done():
	}
}

// buildPeerFencer makes the closer of what a missed replica has open. Where nobody is let in by cloudcores, it closes nothing.
func (c *Cloud) buildPeerFencer(k components, died chan<- string) *peerFencer {
	kick := func(context.Context, string, uint64) (bool, error) { return false, nil }
	if k.ids.sys != nil {
		kick = func(ctx context.Context, server string, client uint64) (bool, error) {
			return identity.KickClient(ctx, k.ids.sys, server, client)
		}
	}
	return newPeerFencer(k.members.failedPeers, kick, died, c.metrics, c.log.Named("replicas"))
}

// hubLinks are those of the connections that are connected.
func hubLinks(connections ...*nats.Conn) []hubLink {
	var links []hubLink
	for _, nc := range connections {
		if nc == nil {
			continue
		}
		if client, err := nc.GetClientID(); err == nil && nc.IsConnected() {
			links = append(links, hubLink{Server: nc.ConnectedServerId(), Client: client})
		}
	}
	return links
}
