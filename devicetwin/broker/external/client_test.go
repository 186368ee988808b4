package external_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/devicetwin/broker/external"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/mosquittotest"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

// taker is a handler that stores messages, and stands still when it is told to.
type taker struct {
	mu       sync.Mutex
	payloads []string      // guarded by mu
	gate     chan struct{} // guarded by mu; nil or open until the handler may go on

	connected, lost, repeated, dropped int // guarded by mu
}

func (k *taker) handle(ctx context.Context, m external.Message, ack func()) error {
	k.mu.Lock()
	gate := k.gate
	k.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.mu.Lock()
	k.payloads = append(k.payloads, string(m.Payload))
	k.mu.Unlock()
	ack()
	return nil
}

func (k *taker) Connected(up bool, _ error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if up {
		k.connected++
	} else {
		k.lost++
	}
}

func (k *taker) Dropped() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dropped++
}

func (k *taker) Repeated() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.repeated++
}

// is reads under the lock.
func (k *taker) is(holds func() bool) func() bool {
	return func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return holds()
	}
}

func (k *taker) stall() (release func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	gate := make(chan struct{})
	k.gate = gate
	return sync.OnceFunc(func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.gate = nil
		close(gate)
	})
}

// startClient runs a client until stop.
func startClient(t *testing.T, cfg external.Config, k *taker) (c *external.Client, stop func()) {
	t.Helper()
	c, err := external.New(cfg, "frond-gw", []string{"a/#"}, k.handle, k, zaptest.NewLogger(t))
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

// publisher is an app at the broker.
func publisher(t *testing.T, addr string) paho.Client {
	t.Helper()
	app := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + addr).SetClientID("app").SetAutoReconnect(false))
	kit.Succeeds(t, 20*time.Second, func() error {
		token := app.Connect()
		token.WaitTimeout(10 * time.Second)
		return token.Error()
	})
	t.Cleanup(func() { app.Disconnect(100) })
	return app
}

func publish(t *testing.T, app paho.Client, payload string) {
	t.Helper()
	token := app.Publish("a/b", 1, false, payload)
	if !token.WaitTimeout(10 * time.Second) {
		t.Fatal("no PUBACK")
	}
	kit.Must(t, token.Error())
}

// expect waits for the messages 0 to n-1, and checks that they come once and in order.
func (k *taker) expect(t *testing.T, n int) {
	t.Helper()
	kit.Within(t, 30*time.Second, fmt.Sprintf("%d messages", n), k.is(func() bool { return len(k.payloads) >= n }))
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, got := range k.payloads {
		if got != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, got)
		}
	}
}

// Messages that wait while the connection is lost, and those whose acknowledgements were lost with it, come again and are handled once, in order.
func TestClient_RedeliveryIsHandledOnce(t *testing.T) {
	b := mosquittotest.Start(t, "max_inflight_messages 20")
	relay := relaytest.Start(t, b.Addr, relaytest.Config{})
	k := &taker{}
	startClient(t, external.Config{URL: "tcp://" + relay.Addr(), KeepAlive: 3 * time.Second}, k)
	kit.Within(t, 10*time.Second, "a connection", k.is(func() bool { return k.connected == 1 }))
	app := publisher(t, b.Addr)
	next := 0
	send := func(n int) {
		for range n {
			publish(t, app, fmt.Sprint(next))
			next++
		}
	}
	send(5)
	k.expect(t, 5)
	for round := range 3 {
		release := k.stall()
		send(30) // more than the broker sends without acknowledgements
		relay.Cut()
		kit.Within(t, 20*time.Second, "the connection is lost", k.is(func() bool { return k.lost > round }))
		if round == 1 {
			release() // handled while there is no connection: the acknowledgements are lost
			kit.Within(t, 20*time.Second, "what waits is handled", k.is(func() bool { return len(k.payloads) >= next-20 }))
		}
		relay.Heal()
		kit.Within(t, 40*time.Second, "a new connection", k.is(func() bool { return k.connected > round+1 }))
		release()
		k.expect(t, next)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.repeated == 0 {
		t.Error("the broker has sent nothing again: the test shows nothing")
	}
}

// What the broker has not sent when the gateway or the broker ends comes afterwards: both keep the session.
func TestClient_SessionOutlivesBothEnds(t *testing.T) {
	b := mosquittotest.Start(t)
	k := &taker{}
	cfg := external.Config{URL: "tcp://" + b.Addr, KeepAlive: 3 * time.Second}
	_, stop := startClient(t, cfg, k)
	kit.Within(t, 10*time.Second, "a connection", k.is(func() bool { return k.connected == 1 }))
	stop()
	app := publisher(t, b.Addr)
	for i := range 50 {
		publish(t, app, fmt.Sprint(i))
	}
	b.Stop()
	startClient(t, cfg, k)
	b.Start()
	k.expect(t, 50)
}

// A broker that loses the session is one with new packet ids: its messages are not those of the old one.
func TestClient_LostSession(t *testing.T) {
	b := mosquittotest.Start(t, "persistence false")
	k := &taker{}
	startClient(t, external.Config{URL: "tcp://" + b.Addr, KeepAlive: 3 * time.Second}, k)
	for round := range 2 {
		kit.Within(t, 30*time.Second, "a connection", k.is(func() bool { return k.connected == round+1 }))
		app := publisher(t, b.Addr)
		publish(t, app, "0")
		kit.Within(t, 10*time.Second, "the message", k.is(func() bool { return len(k.payloads) == round+1 }))
		app.Disconnect(100)
		b.Stop()
		b.Start()
	}
}

// TLS with a CA, a client certificate, and a user with a password; the wrong ones are refused, and said.
func TestClient_TLSAndPassword(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	writeCertificates(t, dir)
	kit.Must(t, os.WriteFile(file("user"), []byte("gateway\n"), 0o600))
	kit.Must(t, os.WriteFile(file("password"), []byte("secret\n"), 0o600))
	kit.Must(t, os.WriteFile(file("passwords"), []byte(mosquittoPassword), 0o600))
	ports, err := kit.FreePorts(1)
	kit.Must(t, err)
	mosquittotest.Start(t, "per_listener_settings false", "allow_anonymous false", "password_file "+file("passwords"),
		fmt.Sprintf("listener %d 127.0.0.1", ports[0]), "cafile "+file("ca.pem"), "certfile "+file("server.pem"), "keyfile "+file("server.key"), "require_certificate true")
	cfg := external.Config{
		URL: fmt.Sprintf("ssl://127.0.0.1:%d", ports[0]), UserFile: file("user"), PasswordFile: file("password"), CAFile: file("ca.pem"),
		CertFile: file("client.pem"), KeyFile: file("client.key"),
	}
	k := &taker{}
	c, stop := startClient(t, cfg, k)
	kit.Within(t, 20*time.Second, "a connection", k.is(func() bool { return k.connected == 1 }))
	kit.Must(t, c.Publish(t.Context(), "a/b", []byte("0")))
	k.expect(t, 1)
	stop()
	for name, change := range map[string]func(*external.Config){
		"no certificate": func(c *external.Config) { c.CertFile, c.KeyFile = "", "" }, "the system's CAs": func(c *external.Config) { c.CAFile = "" },
		"no password": func(c *external.Config) { c.PasswordFile = "" },
	} {
		wrong := cfg
		change(&wrong)
		k := &taker{}
		c, stop := startClient(t, wrong, k)
		kit.Within(t, 20*time.Second, name+" is refused", k.is(func() bool { return k.lost > 0 && k.connected == 0 }))
		if err := c.Publish(t.Context(), "a/b", nil); err == nil {
			t.Errorf("%s: published", name)
		}
		stop()
	}
}

// mosquittoPassword is of mosquitto_passwd: gateway, secret.
const mosquittoPassword = "gateway:$7$101$OjwX7Xoj3qkQNCwq$rN7sE3QGeR8HE2Qb71JzUWIvIMh3xDdaGKuQunEIT+9q322tUwGDMA2vLi4atdy7oKQfSEKFoj2/HoaPn+A6+g==\n"

func writeCertificates(t *testing.T, dir string) {
	t.Helper()
	caKey, caDER := makeCertificate(t, dir, "ca", nil, nil)
	ca, err := x509.ParseCertificate(caDER)
	kit.Must(t, err)
	makeCertificate(t, dir, "server", ca, caKey)
	makeCertificate(t, dir, "client", ca, caKey)
}

func makeCertificate(t *testing.T, dir, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: parent == nil, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	kit.Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	kit.Must(t, err)
	kit.Must(t, os.WriteFile(filepath.Join(dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	kit.Must(t, os.WriteFile(filepath.Join(dir, name+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	return key, der
}

func TestConfig_Validate(t *testing.T) {
	for want, cfg := range map[string]external.Config{
		"scheme":                  {URL: "http://a:1883"},
		"is not scheme://host":    {URL: "tcp://a"},
		"has a user":              {URL: "tcp://u:p@a:1883"},
		"need the scheme ssl":     {URL: "tcp://a:1883", CAFile: "/ca"},
		"one is missing":          {URL: "ssl://a:1883", CertFile: "/c"},
		"userFile is missing":     {URL: "ssl://a:1883", PasswordFile: "/p"},
		"is not an absolute path": {URL: "ssl://a:1883", UserFile: "u"},
		"less than a second":      {URL: "ssl://a:1883", KeepAlive: time.Millisecond},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", cfg, err, want)
		}
	}
	kit.Must(t, external.Config{URL: "mqtts://a:8883", CAFile: "/ca", CertFile: "/c", KeyFile: "/k", UserFile: "/u", PasswordFile: "/p"}.Validate())
}
