package hubtest

import (
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
)

// NewKey creates an nkey and returns it with its public half.
func NewKey(tb testing.TB) (nkeys.KeyPair, string) {
	tb.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		tb.Fatalf("make nkey: %v", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		tb.Fatalf("make nkey: %v", err)
	}
	return pair, public
}

// TLSConfig returns a configuration that trusts the hub's CA and no other.
func (h *Hub) TLSConfig() *tls.Config {
	h.tb.Helper()
	pem, err := os.ReadFile(h.CA)
	if err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}
}

// StartLeaf runs a bare leaf with a node's key, linked to a listener of the hub (its address, and tls or wss), until the test ends. It
// follows none of Frond's rules, like the leaf of a thief of the key.
func (h *Hub) StartLeaf(scheme, address, node string, key nkeys.KeyPair) *server.Server {
	h.tb.Helper()
	public, err := key.PublicKey()
	if err != nil {
		h.tb.Fatalf("leaf: %v", err)
	}
	r := &server.RemoteLeafOpts{
		URLs: []*url.URL{{Scheme: scheme, Host: address}}, IgnoreDiscoveredServers: true,
		TLS: true, TLSHandshakeFirst: true, TLSTimeout: readyTimeout.Seconds(), TLSConfig: h.TLSConfig(), FirstInfoTimeout: readyTimeout,
		SignatureCB: func(nonce []byte) (string, []byte, error) {
			signature, err := key.Sign(nonce)
			if err != nil {
				return "", nil, err
			}
			show, err := identity.EncodeCredential(identity.Credential{Node: node, Key: public}, signature)
			return "", show, err
		},
	}
	r.Compression.Mode = server.CompressionOff
	o := &server.Options{ServerName: node, DontListen: true, NoSigs: true, NoLog: true, MaxPayload: 8 << 20}
	o.LeafNode.Remotes, o.LeafNode.Compression.Mode, o.LeafNode.ReconnectInterval = []*server.RemoteLeafOpts{r}, server.CompressionOff, 200*time.Millisecond
	s, err := server.NewServer(o)
	if err != nil {
		h.tb.Fatalf("leaf: %v", err)
	}
	s.Start()
	h.tb.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.NumLeafNodes() == 0 {
		select {
		case <-deadline.C:
			h.tb.Fatalf("leaf %s has no link", node)
		case <-tick.C:
		}
	}
	return s
}
