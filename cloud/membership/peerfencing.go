package membership

import (
	"context"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// PeerFencer closes the hub connections of a failed replica: one that was stopped, or whose machine is gone. For the
// hub it is present until it has left two pings unanswered, for 10 to 15 s. Until then it receives requests that others
// should answer: calls of nodes, and admission requests of links. A replica that lives after all connects again.
type PeerFencer struct {
	failed <-chan FailedPeer
	// closeConn closes a connection and reports whether there was one.
	closeConn func(ctx context.Context, server string, client uint64) (bool, error)
	// lost notifies the nodes, so that they repeat the requests that the replica has not answered.
	lost        chan<- string
	closedConns prometheus.Counter
	log         *zap.Logger
}

// NewPeerFencer creates a fencer of the replicas that failed delivers. closeConn closes a connection of a server of the
// hub and reports whether there was one; lost receives each replica once its connections are closed.
func NewPeerFencer(failed <-chan FailedPeer, closeConn func(ctx context.Context, server string, client uint64) (bool, error), lost chan<- string, metrics prometheus.Registerer, log *zap.Logger) *PeerFencer {
	return &PeerFencer{
		failed: failed, closeConn: closeConn, lost: lost, log: log,
		closedConns: promauto.With(metrics).NewCounter(prometheus.CounterOpts{
			Namespace: "frond", Name: "replica_connections_closed_total", Help: "Hub connections of failed cloudcore replicas that this replica closed.",
		}),
	}
}

// Start fences failed replicas until ctx ends and then returns nil.
func (s *PeerFencer) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case gone := <-s.failed:
			s.fencePeer(ctx, gone)
		}
	}
}

// fencePeer closes a failed replica's connections, and then makes the nodes repeat their requests. Each other replica
// does the same; twice is harmless.
func (s *PeerFencer) fencePeer(ctx context.Context, gone FailedPeer) {
	var closed atomic.Int32
	var g errgroup.Group // a server that died with the replica answers no request
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

// Links returns the hub's identifiers of the connections that are connected.
func Links(connections ...*nats.Conn) []Link {
	var links []Link
	for _, nc := range connections {
		if nc == nil {
			continue
		}
		if client, err := nc.GetClientID(); err == nil && nc.IsConnected() {
			links = append(links, Link{Server: nc.ConnectedServerId(), Client: client})
		}
	}
	return links
}
