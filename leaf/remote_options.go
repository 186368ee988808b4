package leaf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"

	"github.com/nats-io/nats-server/v2/server"
)

// currentHubs returns the current leaf listeners of the hub.
func (c Config) currentHubs() []string {
	if c.Hubs != nil {
		if now := c.Hubs(); len(now) > 0 {
			return now
		}
	}
	return c.Hub
}

// remoteOptions returns the remote for one of the hub's servers, for one dial and for the dials that nats-server makes itself when that
// one fails. It reads the files now. The server distinguishes remotes by their URLs, so turn makes each a new one; see
// remoteDialer.replaceRemote.
func remoteOptions(cfg Config, turn uint64) (*server.RemoteLeafOpts, error) {
	hubs := cfg.currentHubs()
	if len(hubs) == 0 {
		return nil, errors.New("no hub is known")
	}
	hub, err := url.Parse(hubs[turn%uint64(len(hubs))])
	if err != nil {
		return nil, errors.New("a hub's URL is none") // the cause repeats the text, which may hold a password
	}
	r := &server.RemoteLeafOpts{
		TLSTimeout:       cfg.HandshakeTimeout.Seconds(),
		DialTimeout:      cfg.DialTimeout,
		FirstInfoTimeout: cfg.HandshakeTimeout,
		// The configured list is authoritative: addresses that hub servers report of each other may be unreachable from here.
		IgnoreDiscoveredServers: true,
	}
	r.Compression.Mode = server.CompressionOff
	if err := useProxy(r, cfg, hub); err != nil {
		return nil, err
	}
	if r.TLSConfig, err = tlsConfig(cfg); err != nil {
		return nil, err
	}
	r.TLS = r.TLSConfig != nil
	r.TLSHandshakeFirst = r.TLS
	if cfg.Credential != nil {
		r.SignatureCB = func(nonce []byte) (string, []byte, error) {
			answer, err := cfg.Credential(nonce)
			return "", answer, err // the server would drop a jwt: identity.EncodeCredential
		}
	}
	named := *hub
	if hub.Scheme == "wss" && hub.Port() == "" {
		named.Host = net.JoinHostPort(hub.Hostname(), "443") // nats-server would use its own default
	}
	named.Fragment = strconv.FormatUint(turn, 10) // not part of any dial or request
	r.URLs = []*url.URL{&named}
	return r, nil
}

func useProxy(r *server.RemoteLeafOpts, cfg Config, hub *url.URL) error {
	if cfg.Proxy == nil {
		return nil
	}
	proxy, err := cfg.Proxy(hub)
	if err != nil {
		return fmt.Errorf("find the proxy to %s: %w", hub.Host, err)
	}
	if proxy == nil {
		return nil
	}
	bare := *proxy
	bare.User = nil
	r.Proxy.URL = bare.String()
	r.Proxy.Timeout = cfg.DialTimeout
	if user := proxy.User; user != nil {
		r.Proxy.Username = user.Username()
		r.Proxy.Password, _ = user.Password()
	}
	return nil
}

// tlsConfig returns nil where Config has no CA, which New allows towards loopback only.
func tlsConfig(cfg Config) (*tls.Config, error) {
	if cfg.CAFile == "" {
		return nil, nil //nolint:nilnil // no TLS is no fault
	}
	ca, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the hub's CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("the hub's CA %s holds no certificate", cfg.CAFile)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, // both ends are Frond's
		RootCAs:    pool,
		Time:       cfg.Time,
	}, nil
}
