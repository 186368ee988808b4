package leaf

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// maxMemory is JetStream's memory for streams and consumers without a file: only reading consumers live there.
	maxMemory = 8 << 20
	// maxPayload holds the largest Kubernetes object (etcd: 1.5 MiB) as base64 in a call's reply, and some.
	maxPayload = 8 << 20
	// maxPings is how many pings may stay unanswered.
	maxPings = 2
	// ioThreads is how many file operations run at once; a gateway's one card gains nothing from more.
	ioThreads = 4
)

// secrets are the files of Config, read.
type secrets struct {
	tls  *tls.Config // nil for none
	seed string      // of the nkey; "" for none
}

// options is the server's whole configuration.
func options(cfg Config, sec secrets) (*server.Options, error) {
	o := &server.Options{
		ServerName:             cfg.Node,
		DontListen:             true,
		NoSigs:                 true,
		PingInterval:           cfg.PingInterval,
		MaxPingsOut:            maxPings,
		MaxPayload:             maxPayload,
		JetStream:              true,
		JetStreamDomain:        wire.Escape(cfg.Node),
		JetStreamMaxMemory:     maxMemory,
		JetStreamMaxStore:      cfg.MaxStore,
		JetStreamConcurrentIOs: ioThreads,
		StoreDir:               cfg.Dir,
		SyncAlways:             true, // an ack means that a power cut does not take it back: 0.4 ms here, nats.md §6
	}
	o.LeafNode.Compression.Mode = server.CompressionOff // advisories: faults-and-attacks.md §4
	o.LeafNode.DialTimeout = cfg.DialTimeout
	// The link supervisor dials again long before. This is the net below it.
	o.LeafNode.ReconnectInterval = 2 * cfg.RedialMax
	if len(cfg.Hub) == 0 {
		return o, nil
	}
	r, err := remote(cfg, sec)
	if err != nil {
		return nil, err
	}
	o.LeafNode.Remotes = []*server.RemoteLeafOpts{r}
	return o, nil
}

func remote(cfg Config, sec secrets) (*server.RemoteLeafOpts, error) {
	r := &server.RemoteLeafOpts{
		Nkey:             sec.seed,
		TLSConfig:        sec.tls,
		TLS:              sec.tls != nil,
		TLSTimeout:       cfg.DialTimeout.Seconds(),
		DialTimeout:      cfg.DialTimeout,
		FirstInfoTimeout: cfg.DialTimeout,
		// The configured list is the truth: what hub servers say of each other may be unreachable from here.
		IgnoreDiscoveredServers: true,
	}
	r.Compression.Mode = server.CompressionOff
	for _, h := range cfg.Hub {
		u, err := url.Parse(h)
		if err != nil {
			return nil, fmt.Errorf("parse hub URL: %w", err)
		}
		r.URLs = append(r.URLs, u)
	}
	return r, nil
}

// readSecrets reads the files of Config once, to fail early. The certificate is read again for each connection.
func readSecrets(cfg Config) (secrets, error) {
	var sec secrets
	if cfg.NkeyFile != "" {
		data, err := os.ReadFile(cfg.NkeyFile)
		if err != nil {
			return secrets{}, fmt.Errorf("read nkey seed: %w", err)
		}
		sec.seed = strings.TrimSpace(string(data))
		kp, err := nkeys.FromSeed([]byte(sec.seed))
		if err != nil {
			return secrets{}, fmt.Errorf("nkey seed in %s: %w", cfg.NkeyFile, err)
		}
		kp.Wipe()
	}
	if cfg.CAFile == "" {
		return sec, nil
	}
	ca, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		return secrets{}, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return secrets{}, fmt.Errorf("CA file %s: %w", cfg.CAFile, errors.New("holds no certificate"))
	}
	if _, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile); err != nil {
		return secrets{}, fmt.Errorf("load certificate: %w", err)
	}
	sec.tls = &tls.Config{
		MinVersion: tls.VersionTLS13, // both ends are ours
		RootCAs:    pool,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("load certificate: %w", err)
			}
			// The hub would only close the connection.
			if now := time.Now(); now.After(cert.Leaf.NotAfter) {
				return nil, fmt.Errorf("this gateway's certificate %s expired on %s: replace it, and the link comes up by itself",
					cfg.CertFile, cert.Leaf.NotAfter.UTC().Format(time.DateOnly))
			}
			return &cert, nil
		},
	}
	return sec, nil
}
