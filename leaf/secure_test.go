package leaf_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/leaftest"
)

// authority is a CA for one test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key = a.newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	a.must(err)
	a.cert, err = x509.ParseCertificate(der)
	a.must(err)
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) newKey() *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	a.must(err)
	return k
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	a.must(os.WriteFile(a.path(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// issue writes name.pem and name.key.
func (a *authority) issue(name string, serial int64) {
	a.t.Helper()
	a.issueUntil(name, serial, time.Now().Add(time.Hour))
}

func (a *authority) issueUntil(name string, serial int64, end time.Time) {
	a.t.Helper()
	k := a.newKey()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotAfter: end,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, k.Public(), a.key)
	a.must(err)
	a.write(name+".pem", "CERTIFICATE", der)
	der, err = x509.MarshalECPrivateKey(k)
	a.must(err)
	a.write(name+".key", "EC PRIVATE KEY", der)
}

func TestMutualTLSAndNkey(t *testing.T) {
	ca := newAuthority(t)
	ca.issue("hub", 2)
	ca.issue("node", 3)
	user, err := nkeys.CreateUser()
	ca.must(err)
	public, err := user.PublicKey()
	ca.must(err)
	seed, err := user.Seed()
	ca.must(err)
	ca.must(os.WriteFile(ca.path("seed"), append(seed, '\n'), 0o600))

	serials := make(chan string, 100)
	hub := secureHub(t, ca, public, serials)
	cfg := leaf.Config{
		Hub:    []string{fmt.Sprintf("tls://127.0.0.1:%d", hub)},
		CAFile: ca.path("ca.pem"), CertFile: ca.path("node.pem"), KeyFile: ca.path("node.key"), NkeyFile: ca.path("seed"),
	}
	proxied := cfg
	proxy := leaftest.NewProxy(t, fmt.Sprintf("127.0.0.1:%d", hub))
	proxied.Hub = []string{"tls://" + proxy.Addr()}
	l := leaftest.StartLeaf(t, proxied)
	l.WaitLink(true)
	if got := <-serials; got != "3" {
		t.Errorf("certificate %s, want 3", got)
	}
	ca.issue("node", 4)
	proxy.Reset()
	l.WaitLink(false)
	l.WaitLink(true)
	for got := range serials {
		if got == "4" {
			break // the renewed one, without a restart
		}
	}

	other, err := nkeys.CreateUser()
	ca.must(err)
	seed, err = other.Seed()
	ca.must(err)
	ca.must(os.WriteFile(ca.path("seed"), seed, 0o600))
	cfg.Node = "thief"
	thief := leaftest.StartLeaf(t, cfg)
	dials := 0
	for dials < 3 { // each passes TLS and is then refused
		<-serials
		dials++
		if thief.Link().Up {
			t.Fatal("a link with the wrong key counts as up")
		}
	}
}

// secureHub returns the leaf port of a hub that wants certificates and one nkey, and tells the serials it sees.
func secureHub(t *testing.T, ca *authority, public string, serials chan<- string) int {
	t.Helper()
	cert, err := tls.LoadX509KeyPair(ca.path("hub.pem"), ca.path("hub.key"))
	ca.must(err)
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	o := &server.Options{
		ServerName: "hub", DontListen: true, NoLog: true, NoSigs: true, Nkeys: []*server.NkeyUser{{Nkey: public}},
	}
	o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", server.RANDOM_PORT
	o.LeafNode.TLSTimeout = 5
	o.LeafNode.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		VerifyConnection: func(c tls.ConnectionState) error {
			serials <- c.PeerCertificates[0].SerialNumber.String()
			return nil
		},
	}
	ns, err := server.NewServer(o)
	ca.must(err)
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(20 * time.Second) {
		t.Fatal("hub not ready")
	}
	return o.LeafNode.Port
}
