package cloud

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/cloud/partitions"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// hubReconnectWait is the delay before the next server is tried; every node would notice the library's 2 s.
	hubReconnectWait = 100 * time.Millisecond
	// hubPingInterval and hubMaxPings detect a half-open connection within 15 s.
	hubPingInterval = 5 * time.Second
	hubMaxPings     = 2
	// hubTimeout bounds one connection attempt.
	hubTimeout = 5 * time.Second
)

// hubConns are this replica's connections to the hub.
type hubConns struct {
	// nc carries heartbeats, calls and reports, writer the desired state. Bulk data through a tunnel fills the connection
	// that carries it; heartbeats and delivery use another than tunnels and do not wait behind it.
	nc, writer, tunnels *nats.Conn
	// auth and sys belong to other accounts of the hub, those of the callout and of the system; they and issuer are nil if
	// the configuration has no identity section.
	auth, sys *nats.Conn
	issuer    nkeys.KeyPair
}

// connectHub opens the connections; the caller closes them.
func connectHub(cfg config.CloudCore, metrics prometheus.Registerer, log *zap.Logger) (hub *hubConns, err error) {
	reconnects := prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "frond", Name: "hub_reconnects_total", Help: "Connections to the hub after the first ones.",
	})
	if err := metrics.Register(reconnects); err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	hub = &hubConns{}
	defer func() {
		if err != nil {
			hub.close()
		}
	}()
	name := "cloudcore " + cfg.ID
	if hub.nc, err = dialHub(cfg.Hub, name, reconnects, log.Named("hub")); err != nil {
		return nil, err
	}
	if hub.writer, err = dialWriter(cfg.Hub, name+" writer", reconnects, log.Named("writer")); err != nil {
		return nil, err
	}
	if hub.tunnels, err = dialHub(cfg.Hub, name+" tunnels", reconnects, log.Named("tunnels")); err != nil {
		return nil, err
	}
	if !cfg.Identity.Enabled() {
		return hub, nil
	}
	seed, err := os.ReadFile(cfg.Identity.IssuerSeedFile)
	if err != nil {
		return nil, fmt.Errorf("identity: issuer: %w", err)
	}
	if hub.issuer, err = nkeys.FromSeed(bytes.TrimSpace(seed)); err != nil {
		return nil, fmt.Errorf("identity: issuer %s: %w", cfg.Identity.IssuerSeedFile, err)
	}
	as := func(user, nkeyFile string) (*nats.Conn, error) {
		account := cfg.Hub
		account.NkeyFile = nkeyFile
		return dialHub(account, name+" "+user, reconnects, log.Named(user))
	}
	if hub.auth, err = as("callout", cfg.Identity.AuthNkeyFile); err != nil {
		return nil, err
	}
	if hub.sys, err = as("kicker", cfg.Identity.SysNkeyFile); err != nil {
		return nil, err
	}
	return hub, nil
}

// all returns the connections, in no useful order; one that is not configured is nil.
func (h *hubConns) all() []*nats.Conn { return []*nats.Conn{h.nc, h.writer, h.tunnels, h.auth, h.sys} }

func (h *hubConns) close() {
	for _, nc := range h.all() {
		if nc != nil {
			nc.Close()
		}
	}
}

// hubStores are the hub's buckets.
type hubStores struct{ members, registry jetstream.KeyValue }

// ensureHub creates the hub's topology, retrying until the hub has a leader, and opens its buckets. It returns at once if the hub has
// another layout.
func ensureHub(ctx context.Context, nc *nats.Conn, replicas int, layout subject.Layout, log *zap.Logger) (stores hubStores, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return stores, err
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		if err = ensureLayout(ctx, nc, js, replicas, layout); err == nil {
			break
		}
		if errors.Is(err, partitions.ErrOther) {
			return stores, err
		}
		log.Info("hub not ready", zap.Error(err))
		select {
		case <-ctx.Done():
			return stores, errors.Join(err, ctx.Err())
		case <-ticker.C:
		}
	}
	if stores.members, err = js.KeyValue(ctx, subject.MembersBucket); err != nil {
		return stores, err
	}
	if stores.registry, err = js.KeyValue(ctx, subject.RegistryBucket); err != nil {
		return stores, fmt.Errorf("registry: %w", err)
	}
	return stores, nil
}

// ensureLayout creates the hub's topology, after all agree on its layout.
func ensureLayout(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, replicas int, layout subject.Layout) error {
	all := topology.HubTopology(replicas, layout)
	if err := topology.Ensure(ctx, js, topology.Topology{Buckets: all.Buckets}); err != nil {
		return err
	}
	registry, err := js.KeyValue(ctx, subject.RegistryBucket)
	if err != nil {
		return fmt.Errorf("registry: %w", err)
	}
	if err := partitions.Agree(ctx, nc, registry, layout); err != nil {
		return err
	}
	return topology.Ensure(ctx, js, all)
}

// dialWriter opens the connection on which the desired state is published. A publish while it is lost fails, and is not
// kept for the next connection as elsewhere. When a replica that was stopped for long continues, the hub has dropped
// its connection, and nothing that it had decided before may arrive.
func dialWriter(cfg config.Hub, name string, reconnects prometheus.Counter, log *zap.Logger) (*nats.Conn, error) {
	return dialHub(cfg, name, reconnects, log, nats.ReconnectBufSize(-1))
}

// dialHub opens cloudcore's connection to the hub. It does not wait for a server: it connects when one is available,
// and again whenever the connection is lost.
func dialHub(cfg config.Hub, name string, reconnects prometheus.Counter, log *zap.Logger, more ...nats.Option) (*nats.Conn, error) {
	nkey, err := nats.NkeyOptionFromSeed(cfg.NkeyFile)
	if err != nil {
		return nil, fmt.Errorf("hub credentials %s: %w", cfg.NkeyFile, err)
	}
	opts := nats.GetDefaultOptions()
	opts.Servers = cfg.URLs
	for _, option := range append(more,
		nats.Name(name), nkey, nats.RootCAs(cfg.CAFile), nats.ClientCert(cfg.CertFile, cfg.KeyFile),
		nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), nats.ReconnectWait(hubReconnectWait), nats.ReconnectJitter(hubReconnectWait, hubReconnectWait),
		nats.PingInterval(hubPingInterval), nats.MaxPingsOutstanding(hubMaxPings), nats.Timeout(hubTimeout),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { log.Warn("hub connection lost", zap.Error(err)) }),
		nats.ConnectHandler(func(nc *nats.Conn) { log.Info("hub connected", zap.String("server", nc.ConnectedServerName())) }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			reconnects.Inc()
			log.Info("hub connected", zap.String("server", nc.ConnectedServerName()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			log.Warn("hub error", zap.String("subject", subject), zap.Error(err))
		}),
	) {
		if err := option(&opts); err != nil {
			return nil, fmt.Errorf("hub: %w", err)
		}
	}
	nc, err := opts.Connect()
	if err != nil {
		return nil, fmt.Errorf("hub: %w", err)
	}
	return nc, nil
}
