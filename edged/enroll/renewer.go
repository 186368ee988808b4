package enroll

import (
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/leaf"
)

// Config holds the gateway's intended identity, and how it reaches the cloud.
type Config struct {
	// Node is the name of its Kubernetes Node.
	Node string
	// Dir is the folder of the identity.
	Dir string
	// Hub lists the hub's leaf listeners; those that the cloud names come before them.
	Hub []string
	// Token is the join token, or TokenFile contains it; both may be empty for an enrolled gateway.
	Token, TokenFile string
	// CAHashes are the hashes of the hub's CA, one or more, "sha256:" and the hash of the public key; required with a token.
	CAHashes []string
	// Proxy returns the HTTP proxy to a hub; nil is none.
	Proxy func(hub *url.URL) (*url.URL, error)
	// Wall is the machine's clock; nil is time.Now.
	Wall func() time.Time
	// Up returns how long the machine has run, including suspend; nil asks the kernel.
	Up func() time.Duration
	// Once makes Start return the reason when the cloud refuses the gateway, instead of retrying.
	Once bool
	// Metrics registers the metrics; nil drops them.
	Metrics prometheus.Registerer
}

// Link is the leaf that connects the gateway.
type Link interface {
	WatchLink() (leaf.LinkState, <-chan struct{})
	Problem() error
	Redial()
	Conn(name string, opts ...nats.Option) (*nats.Conn, error)
}

// Renewer maintains a gateway's identity: it enrols the gateway and renews its key.
type Renewer struct {
	cfg     Config
	log     *zap.Logger
	metrics *renewerMetrics
	keys    *keyring
	trust   *hubTrust
	// enrolled closes when there is a record.
	enrolled chan struct{}

	// Used by Start alone:
	link         Link
	calls        *cloudCalls
	lastWarned   string
	backoff      retryBackoff
	settledSince time.Time // the link's Since when it was found to be in the node's own cell
	renewAfter   time.Time // a due renewal waits until then; zero while it is not due
}

// New reads the folder, or creates it. It sends no request.
func New(cfg Config, log *zap.Logger) (*Renewer, error) {
	f, err := identitydir.Open(cfg.Dir, cfg.Node)
	if err != nil {
		return nil, err
	}
	floor, err := f.ClockFloor()
	if err != nil {
		log.Warn("the last known time is lost, the machine's clock is believed", zap.Error(err))
	}
	log = log.Named("enrol")
	metrics, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	keys := &keyring{node: cfg.Node, token: cfg.Token, tokenFile: cfg.TokenFile, log: log, folder: f}
	k := &Renewer{
		cfg: cfg, log: log, metrics: metrics, keys: keys, enrolled: make(chan struct{}),
		trust: &hubTrust{
			keys: keys, hubs: cfg.Hub, hashes: cfg.CAHashes, hubCA: f.HubCA(), proxy: cfg.Proxy, metrics: metrics, log: log,
			clock: newTrustedClock(cfg.Wall, cfg.Up, floor),
		},
	}
	if f.Record.Key != "" {
		k.metrics.expires.Set(float64(f.Record.Expires.Unix()))
		close(k.enrolled)
	}
	return k, nil
}

// Enrolled closes when the cloud has recorded this gateway.
func (k *Renewer) Enrolled() <-chan struct{} { return k.enrolled }

// Record returns the cloud's latest answer; zero before there is one.
func (k *Renewer) Record() identitydir.Record { return k.keys.record() }

// Refused returns why the cloud does not renew this gateway's key, and what to do; "" if the cloud has not refused.
func (k *Renewer) Refused() string { return k.keys.refusal() }

// ClusterCA is the file with the CAs of the Kubernetes cluster; before the enrolment it does not exist.
func (k *Renewer) ClusterCA() string { return k.keys.folder.ClusterCA() }

// Now returns the cloud's time, as far as it is known.
func (k *Renewer) Now() time.Time { return k.trust.now() }

// HubCA is the file with the hub's CAs; before the enrolment it does not exist.
func (k *Renewer) HubCA() string { return k.trust.hubCA }

// ConfigureLeaf configures a leaf of this gateway: it dials the gateway's hubs, once their CA is known, and authenticates with its key.
func (k *Renewer) ConfigureLeaf(c *leaf.Config) {
	c.Hub, c.Hubs, c.CAFile, c.Credential = k.cfg.Hub, k.trust.allHubs, k.trust.hubCA, k.keys.credential
	c.Proxy, c.Time = k.cfg.Proxy, k.Now
}

// lastWarning returns the last warning. Start must have ended.
func (k *Renewer) lastWarning() string {
	if k.lastWarned == "" {
		return "nothing was heard"
	}
	return k.lastWarned
}
