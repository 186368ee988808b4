// Package agent assembles edgecore: leaf, store, local API, delivery, reports and the kubelet of one gateway.
//
// The parts start in the order of the downward path and stop in reverse, each awaited, so the kubelet can still write its
// last status into the store. No part waits for the link: without one the node runs the content of its store.
package agent

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/nodeidentity"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/streams/call"
)

// probeTimeout limits one round trip of the link's watchdog.
const probeTimeout = 5 * time.Second

// Node is one gateway's agent.
type Node struct {
	cfg     config.EdgeCore
	proxy   func(*url.URL) (*url.URL, error)
	metrics *prometheus.Registry
	log     *zap.Logger
}

// New validates the configuration and creates the node's folders. proxy finds the HTTP proxy to a hub; metrics is served on /metrics.
func New(cfg config.EdgeCore, proxy func(*url.URL) (*url.URL, error), metrics *prometheus.Registry, log *zap.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := makeFolders(cfg, log); err != nil {
		return nil, fmt.Errorf("make the node's folders: %w", err)
	}
	return &Node{cfg: cfg, proxy: proxy, metrics: metrics, log: log}, nil
}

// Start runs the node until ctx ends, then stops it and returns nil. Containers keep running.
func (n *Node) Start(ctx context.Context) error {
	hub := n.cfg.Hub
	identity, err := nodeidentity.Load(enroll.Config{
		Node: n.cfg.Node, Dir: identityDir(n.cfg), Hub: hub.URLs, TokenFile: hub.TokenFile, CAHashes: hub.CAHashes,
		Proxy: n.proxy, Metrics: n.metrics,
	}, n.log)
	if err != nil {
		return err
	}
	conns := make(chan *nats.Conn, 1)
	cfg := identity.LeafConfig()
	cfg.Node, cfg.Dir, cfg.Metrics = n.cfg.Node, filepath.Join(n.cfg.Dir, "nats"), n.metrics
	cfg.Probe = newLinkProbe(n.cfg.Node, conns)
	server, err := leaf.New(cfg, n.log)
	if err != nil {
		return err
	}
	parts := []lifecycle.Part{{Name: "leaf", Start: server.Start, Ready: server.Ready()}}
	if renewer := identity.Renewer(); renewer != nil {
		parts = append(parts, newIdentityPart(n.cfg, renewer, server))
	}
	return lifecycle.Run(ctx, n.log, append(parts, lifecycle.Part{Name: "node", Start: func(ctx context.Context) error {
		return n.runParts(ctx, identity, server, conns)
	}})...)
}

// runParts runs all parts that depend on the leaf server. It sends their connection to conns.
func (n *Node) runParts(ctx context.Context, identity *nodeidentity.Identity, server *leaf.Server, conns chan<- *nats.Conn) error {
	nc, err := server.Conn("edgecore")
	if err != nil {
		return err
	}
	defer nc.Close()
	conns <- nc
	local, err := server.LocalConn("storage")
	if err != nil {
		return err
	}
	defer local.Close()
	bulk, err := server.Conn("tunnels")
	if err != nil {
		return err
	}
	defer bulk.Close()
	parts, err := assembleParts(ctx, &foundation{
		cfg: n.cfg, metrics: n.metrics, log: n.log, identity: identity, leaf: server, link: leafLink{server}, nc: nc, local: local, bulk: bulk,
	})
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, n.log, parts...)
}

// newIdentityPart returns the part that enrols the node and renews its key. Other parts wait for the enrolment only on a node
// whose store is still empty.
func newIdentityPart(cfg config.EdgeCore, renewer *enroll.Renewer, server *leaf.Server) lifecycle.Part {
	part := lifecycle.Part{Name: "identity", Start: func(ctx context.Context) error { return renewer.Start(ctx, server) }}
	if _, err := os.Stat(highWaterFile(cfg)); err != nil {
		part.Ready = renewer.Enrolled()
	}
	return part
}

// newLinkProbe returns the link's watchdog: any answer of the hub suffices, even that the consumer is unknown. It succeeds until
// there is a connection in conns.
func newLinkProbe(node string, conns chan *nats.Conn) func(context.Context) error {
	return func(ctx context.Context) error {
		var nc *nats.Conn
		select {
		case nc = <-conns:
			conns <- nc
		default:
			return nil // the node is still starting
		}
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		return call.Probe(ctx, nc, node)
	}
}

// leafLink adapts the leaf's link for streams.
type leafLink struct{ leaf *leaf.Server }

func (l leafLink) State() (bool, <-chan struct{}) {
	state, changed := l.leaf.WatchLink()
	return state.Up, changed
}
