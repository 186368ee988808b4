package tunnel_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/certs/mint"
)

// tlsConfigs are the configurations of both ends of TLS with one certificate.
type tlsConfigs struct{ client, server *tls.Config }

func selfSigned(t testing.TB) tlsConfigs {
	t.Helper()
	ca, err := mint.NewAuthority(x509.Certificate{
		Subject: pkix.Name{CommonName: "node"}, DNSNames: []string{"node"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	return tlsConfigs{
		client: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: "node"},
		server: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{ca.Cert.Raw}, PrivateKey: ca.Key}}},
	}
}

// wrapTLS puts TLS on both ends of a connection.
func wrapTLS(t testing.TB, c tlsConfigs, cloud, node net.Conn) (cloudTLS, nodeTLS net.Conn) {
	t.Helper()
	cloudTLS, nodeTLS = tls.Client(cloud, c.client), tls.Server(node, c.server)
	t.Cleanup(func() {
		_ = cloud.Close() // not the TLS ends: a Write may hold their lock
		_ = node.Close()
	})
	return cloudTLS, nodeTLS
}
