package tunnel_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"testing"
	"time"
)

// tlsConfigs are the configurations of both ends of TLS with one certificate.
type tlsConfigs struct{ client, server *tls.Config }

func selfSigned(t testing.TB) tlsConfigs {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"}, DNSNames: []string{"node"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tlsConfigs{
		client: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: "node"},
		server: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}},
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
