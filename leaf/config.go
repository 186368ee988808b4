package leaf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The defaults of Config's durations.
const (
	// Three missed pings of 5 s find a half-open link after 13 to 18 s (measured). Both ends need it.
	defaultPing = 5 * time.Second
	// An attached gateway receives a heartbeat of its pull every 3 s, so a link that is silent for five of them is in doubt. Two probes of
	// 5 s that fail after it leave 5 s of the promised 30 for closing the link.
	defaultProbeAfter    = 15 * time.Second
	defaultProbeInterval = 5 * time.Second
	defaultProbeTimeout  = 25 * time.Second
	// defaultDial covers a TCP handshake with two lost packets (1 s + 2 s), as on a bad mobile link.
	defaultDial = 5 * time.Second
	// A dial is given up for the next one, so the shortest time must hold a TCP and TLS handshake over a satellite (4 round trips of 0.3
	// s). 15 s spreads 100,000 nodes to 8,000 dials a second.
	defaultRedialMin = 2 * time.Second
	defaultRedialMax = 15 * time.Second
	// defaultStalledMax spreads 2,000 nodes to 42 dials a second. A hub with 7 % of a core finishes 25 (measured).
	defaultStalledMax = time.Minute
	// defaultHandshake is how long a hub may take for TLS, and for its first answer: a busy one works through a queue, and what a node gives
	// up was done for nothing.
	defaultHandshake = 20 * time.Second
	// defaultMaxStore is the disk space that JetStream may use: small enough for an 8 GB eMMC card.
	defaultMaxStore = 1 << 30
	// defaultReserve holds the whole store of a large node (1,000 objects of 2 KiB) several times, as a rewrite needs it.
	defaultReserve = 32 << 20
)

// Config configures the node's server: its name, its store folder and its link to the hub.
type Config struct {
	// Node is the node's name: the server's name and, escaped, its JetStream domain and inbox prefix.
	Node string
	// Dir is the store folder, owned by this server alone.
	Dir string
	// Hub lists the hub's leaf listeners: tls://host:port or wss://host:port, and on loopback nats-leaf:// or ws://.
	// Empty: a node without a link.
	Hub []string
	// Hubs, if it returns any URL, replaces Hub. It is called before each dial.
	Hubs func() []string
	// CAFile holds the CAs that sign the hub's certificates. It is read again for each dial, so that they can change without a restart;
	// while it is missing the hub is not dialled. "" is only for loopback.
	CAFile string
	// Credential answers the hub's nonce with the encoding of identity.EncodeCredential, which identifies the node. It is called for each
	// connection, by any goroutine. nil is for hubs without authentication.
	Credential func(nonce []byte) ([]byte, error)
	// Proxy returns the HTTP proxy, http:// or https://, for a hub; nil, or a nil URL, is none.
	Proxy func(hub *url.URL) (*url.URL, error)
	// Time is the clock for the validity of the hub's certificate; nil is the machine's clock.
	Time func() time.Time

	// PingInterval is the time between pings on the link and in the process; 0 is 5 s.
	PingInterval time.Duration
	// Probe makes one round trip to the hub, within its context; nil for none. It is called only while the link is up, one call at a time.
	Probe func(context.Context) error
	// ProbeAfter is how long no message may arrive over the link before it is probed; 0 is 15 s.
	ProbeAfter time.Duration
	// ProbeInterval is the time between probes of a silent link; 0 is 5 s.
	ProbeInterval time.Duration
	// ProbeTimeout is how long the link may be silent, its probes included, before it is dropped; 0 is 25 s.
	ProbeTimeout time.Duration
	// DialTimeout limits TCP; 0 is 5 s.
	DialTimeout time.Duration
	// HandshakeTimeout limits TLS and the first answer of the hub, each; 0 is 20 s. The next dial ends both.
	HandshakeTimeout time.Duration
	// RedialMin and RedialMax bound the time between two dials; jitter takes up to 40 % off; 0 is 2 s and 15 s. SetRedialMax raises
	// RedialMax.
	RedialMin, RedialMax time.Duration
	// StalledMax takes the place of RedialMax while the hub accepts connections and does not answer; 0 is a minute.
	StalledMax time.Duration
	// MaxStore limits the bytes of all streams on disk; 0 is 1 GiB.
	MaxStore int64
	// Reserve is the disk space kept for control state, in a file that shrinks when the disk is full; 0 is 32 MiB, and a negative value
	// keeps none.
	Reserve int64
	// Metrics registers the link's metrics; nil drops them. A node that shares a registry wraps it with its own labels.
	Metrics prometheus.Registerer
}

func (c Config) withDefaults() Config {
	for d, v := range map[*time.Duration]time.Duration{
		&c.PingInterval:     defaultPing,
		&c.ProbeAfter:       defaultProbeAfter,
		&c.ProbeInterval:    defaultProbeInterval,
		&c.ProbeTimeout:     defaultProbeTimeout,
		&c.DialTimeout:      defaultDial,
		&c.HandshakeTimeout: defaultHandshake,
		&c.RedialMin:        defaultRedialMin,
		&c.RedialMax:        defaultRedialMax,
		&c.StalledMax:       defaultStalledMax,
	} {
		if *d <= 0 {
			*d = v
		}
	}
	c.RedialMax = max(c.RedialMax, c.RedialMin)
	c.StalledMax = max(c.StalledMax, c.RedialMax)
	if c.MaxStore <= 0 {
		c.MaxStore = defaultMaxStore
	}
	switch {
	case c.Reserve == 0:
		c.Reserve = defaultReserve
	case c.Reserve < 0:
		c.Reserve = 0
	}
	return c
}

// Validate reports every invalid field.
func (c Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("node: is empty"))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("dir: is empty"))
	}
	for _, h := range c.Hub {
		if err := validateHub(h, c.CAFile != ""); err != nil {
			errs = append(errs, fmt.Errorf("hub %q: %w", h, err))
		}
	}
	return errors.Join(errs...)
}

func validateHub(text string, secure bool) error {
	u, err := url.Parse(text)
	if err != nil {
		return errors.New("not a URL") // the cause repeats the text, which may hold a password
	}
	if u.Hostname() == "" {
		return errors.New("has no host")
	}
	switch u.Scheme {
	case "tls", "wss":
		if !secure {
			return errors.New("needs caFile")
		}
	case "nats-leaf", "nats", "ws":
		if !isLoopback(u.Hostname()) {
			return errors.New("only tls and wss may leave the machine")
		}
	default:
		return errors.New("scheme is none of tls, wss")
	}
	return nil
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && net.IP(ip.AsSlice()).IsLoopback()
}
