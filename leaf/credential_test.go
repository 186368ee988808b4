package leaf_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// newCredential returns a credential of a new key.
func newCredential(t *testing.T, node string) (public string, credential func([]byte) ([]byte, error)) {
	t.Helper()
	key, err := nkeys.CreateUser()
	kit.Must(t, err)
	public, err = key.PublicKey()
	kit.Must(t, err)
	return public, func(nonce []byte) ([]byte, error) {
		signature, err := key.Sign(nonce)
		if err != nil {
			return nil, err
		}
		return identity.EncodeCredential(identity.Credential{Node: node, Key: public}, signature)
	}
}

// startAuthHub starts a hub that admits one key at a time, and writes its CA to a file.
func startAuthHub(t *testing.T) (door *leaftest.AuthHub, caFile string, admitted *atomic.Pointer[string], cert *atomic.Pointer[tls.Certificate], ca *leaftest.CA) {
	t.Helper()
	ca = leaftest.NewCA(t)
	caFile = filepath.Join(t.TempDir(), "ca.crt")
	kit.Must(t, os.WriteFile(caFile, ca.PEM(), 0o600))
	admitted, cert = &atomic.Pointer[string]{}, &atomic.Pointer[tls.Certificate]{}
	serving := ca.ServingCert(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	cert.Store(&serving)
	door = leaftest.NewAuthHub(t, func() tls.Certificate { return *cert.Load() }, func(c identity.Credential) *leaftest.Admission {
		if key := admitted.Load(); key == nil || c.Key != *key {
			return nil
		}
		return &leaftest.Admission{Account: leaftest.CellAccount, Publish: []string{"out.>"}, Subscribe: []string{"in.>"}}
	})
	return door, caFile, admitted, cert, ca
}

// The credential is requested for each connection, so a renewed key needs no restart. A refusal is reported as ErrRefused.
func TestServer_CredentialIsReadForEachConnection(t *testing.T) {
	door, caFile, admitted, _, _ := startAuthHub(t)
	first, sign := newCredential(t, "edge-1")
	var now atomic.Pointer[func([]byte) ([]byte, error)]
	now.Store(&sign)
	l := leaftest.StartLeaf(t, leaf.Config{
		Hub: []string{"tls://" + door.Addr()}, CAFile: caFile,
		Credential: func(nonce []byte) ([]byte, error) { return (*now.Load())(nonce) },
	})
	kit.Eventually(t, "a stranger is refused", func() bool { return errors.Is(l.Problem(), leaf.ErrRefused) })
	admitted.Store(&first)
	l.WaitLink(true)
	if err := l.Problem(); err != nil {
		t.Errorf("a problem with the link up: %v", err)
	}
	second, another := newCredential(t, "edge-1")
	admitted.Store(&second)
	door.CloseLinks()
	kit.Eventually(t, "the old key is refused", func() bool { return errors.Is(l.Problem(), leaf.ErrRefused) })
	now.Store(&another)
	l.WaitLink(true)
}

// The hub changes its CA: the gateway, which has both for a while, then the new one alone, needs no restart.
func TestServer_CAFileIsReadForEachDial(t *testing.T) {
	door, caFile, admitted, cert, old := startAuthHub(t)
	key, sign := newCredential(t, "edge-1")
	admitted.Store(&key)
	l := leaftest.StartLeaf(t, leaf.Config{Hub: []string{"tls://" + door.Addr()}, CAFile: caFile, Credential: sign})
	l.WaitLink(true)
	next := leaftest.NewCA(t)
	serving := next.ServingCert(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	cert.Store(&serving)
	l.Redial()
	kit.Eventually(t, "a hub of an unknown CA is not trusted", func() bool { return l.Problem() != nil && !l.Link().Up })
	kit.Must(t, os.WriteFile(caFile, bytes.Join([][]byte{old.PEM(), next.PEM()}, nil), 0o600))
	l.WaitLink(true)
	kit.Must(t, os.WriteFile(caFile, next.PEM(), 0o600))
	l.Redial()
	kit.Eventually(t, "another link", func() bool { s := l.Link(); return s.Up && s.Reconnects > 1 })
}

// One port that speaks TLS or HTTP is enough: WebSocket, and a proxy that supports only CONNECT and a password.
func TestServer_LinksThroughProxyAndWebSocket(t *testing.T) {
	door, caFile, admitted, _, _ := startAuthHub(t)
	for name, hub := range map[string]string{"tls": "tls://" + door.Addr(), "wss": "wss://" + door.WebSocketAddr()} {
		for _, proxied := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				key, sign := newCredential(t, "edge-1")
				admitted.Store(&key)
				cfg := leaf.Config{Hub: []string{hub}, CAFile: caFile, Credential: sign}
				proxy := leaftest.NewHTTPProxy(t)
				if proxied {
					cfg.Proxy = proxy.Find
				}
				l := leaftest.StartLeaf(t, cfg)
				l.WaitLink(true)
				if n := proxy.Tunnels.Load(); (n > 0) != proxied {
					t.Errorf("%d tunnels, proxied %t", n, proxied)
				}
				sub, err := door.Client(leaftest.CellAccount).SubscribeSync("out.hello")
				kit.Must(t, err)
				nc := l.Client()
				kit.Eventually(t, "a message crosses", func() bool {
					kit.Must(t, nc.Publish("out.hello", nil))
					_, err := sub.NextMsg(50 * time.Millisecond)
					return err == nil
				})
				l.Stop()
			})
		}
	}
}

// A gateway with a wrong clock checks the hub's certificate against Config.Time.
func TestServer_HubCertificateIsCheckedAtConfigTime(t *testing.T) {
	door, caFile, admitted, cert, ca := startAuthHub(t)
	then := time.Now().AddDate(10, 0, 0)
	serving := ca.ServingCert(then.Add(-time.Hour), then.Add(time.Hour))
	cert.Store(&serving)
	key, sign := newCredential(t, "edge-1")
	admitted.Store(&key)
	var ahead atomic.Bool
	l := leaftest.StartLeaf(t, leaf.Config{
		Hub: []string{"tls://" + door.Addr()}, CAFile: caFile, Credential: sign,
		Time: func() time.Time {
			if ahead.Load() {
				return then
			}
			return time.Now()
		},
	})
	kit.Eventually(t, "a certificate of the future is not accepted", func() bool { return l.Problem() != nil })
	if l.Link().Up {
		t.Error("link up")
	}
	ahead.Store(true)
	l.WaitLink(true)
}
