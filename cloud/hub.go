package cloud

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
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
