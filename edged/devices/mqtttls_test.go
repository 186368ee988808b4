package devices_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// mqttCA issues the certificates of a broker and of its clients.
type mqttCA struct {
	*testing.T
	signer *mint.Authority
	dir    string
}

func newMQTTCA(t *testing.T) *mqttCA {
	t.Helper()
	signer, err := mint.NewAuthority(x509.Certificate{
		Subject: pkix.Name{CommonName: "MQTT CA"}, NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(1, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	})
	kit.Must(t, err)
	ca := &mqttCA{T: t, signer: signer, dir: t.TempDir()}
	kit.Must(t, os.WriteFile(ca.file(), mint.EncodeCertificate(signer.Cert.Raw), 0o600))
	return ca
}

func (ca *mqttCA) file() string { return filepath.Join(ca.dir, "ca.crt") }

func (ca *mqttCA) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.signer.Cert)
	return pool
}

// issue writes a certificate for 127.0.0.1 and its key.
func (ca *mqttCA) issue(cert, key string, until time.Time) {
	ca.Helper()
	template := x509.Certificate{
		Subject: pkix.Name{CommonName: "broker"}, NotBefore: time.Now().AddDate(0, -1, 0), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	mint.AddHosts(&template, []string{"127.0.0.1"})
	der, private, err := ca.signer.Issue(template)
	kit.Must(ca, err)
	pem, err := mint.EncodeKey(private)
	kit.Must(ca, err)
	kit.Must(ca, os.WriteFile(key, pem, 0o600))
	kit.Must(ca, os.WriteFile(cert, mint.EncodeCertificate(der), 0o600))
}

// secureGateway is a gateway whose broker takes TLS and a user boiler with the password secret.
type secureGateway struct {
	*gateway
	ca        *mqttCA
	cert, key string
}

func newSecureGateway(t *testing.T, change func(*config.MQTT)) *secureGateway {
	t.Helper()
	g := &secureGateway{gateway: newGateway(t), ca: newMQTTCA(t)}
	g.cert, g.key = filepath.Join(g.ca.dir, "mqtt.crt"), filepath.Join(g.ca.dir, "mqtt.key")
	g.ca.issue(g.cert, g.key, time.Now().Add(time.Hour))
	users := filepath.Join(g.ca.dir, "users.yaml")
	kit.Must(t, os.WriteFile(users, []byte("- {name: boiler, passwordHash: '$2a$04$"+bcryptOf(t, "secret")+"', devices: [default/a]}\n"), 0o600))
	g.setDevice("a", "edge-1", "1")
	g.start(func(d *config.Devices) {
		d.MQTT.AllowLoopbackAnonymous, d.MQTT.UsersFile, d.MQTT.TLS = false, users, config.MQTTTLS{CertFile: g.cert, KeyFile: g.key}
		if change != nil {
			change(&d.MQTT)
		}
	})
	return g
}

// dial connects as the user, and returns the error of one attempt.
func (g *secureGateway) dial(secure *tls.Config) (paho.Client, error) {
	g.Helper()
	o := paho.NewClientOptions().AddBroker("ssl://" + g.address).SetClientID("boiler").SetUsername("boiler").SetPassword("secret").SetAutoReconnect(false).
		SetProtocolVersion(4).SetConnectTimeout(10 * time.Second).SetTLSConfig(secure)
	client := paho.NewClient(o)
	token := client.Connect()
	if !token.WaitTimeout(20 * time.Second) {
		return nil, fmt.Errorf("no CONNACK")
	}
	return client, token.Error()
}

// mustDial connects as soon as the broker listens.
func (g *secureGateway) mustDial(secure *tls.Config) paho.Client {
	g.Helper()
	var client paho.Client
	kit.Succeeds(g, time.Minute, func() (err error) {
		client, err = g.dial(secure)
		return err
	})
	g.Cleanup(func() { client.Disconnect(100) })
	return client
}

// serial returns the serial number of the certificate that the broker shows.
func (g *secureGateway) serial() string {
	g.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{RootCAs: g.ca.pool(), MinVersion: tls.VersionTLS12}}).DialContext(g.Context(), "tcp", g.address)
	kit.Must(g, err)
	defer func() { kit.Must(g, conn.Close()) }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// Clients connect by TLS 1.2 and 1.3, verify the broker, and not without TLS or with an older version. A renewed certificate is shown to new connections
// while others go on; one that has expired is refused by clients.
func TestMQTTTLS_Server(t *testing.T) {
	g := newSecureGateway(t, nil)
	app := g.mustDial(&tls.Config{RootCAs: g.ca.pool(), MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12})
	g.publish(app, "a", "9")
	g.reported("a", `"9"`)
	other := newMQTTCA(t)
	for name, secure := range map[string]*tls.Config{
		"wrong CA": {RootCAs: other.pool(), MinVersion: tls.VersionTLS12},
		"TLS 1.1":  {RootCAs: g.ca.pool(), MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, //nolint:gosec // it is refused
	} {
		if _, err := g.dial(secure); err == nil {
			t.Errorf("%s: the client is connected", name)
		}
	}
	plain := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + g.address).SetClientID("boiler").SetUsername("boiler").SetPassword("secret").SetAutoReconnect(false))
	if token := plain.Connect(); token.WaitTimeout(20*time.Second) && token.Error() == nil {
		t.Error("a client without TLS is connected")
	}
	before := g.serial()
	g.ca.issue(g.cert, g.key, time.Now().Add(2*time.Hour))
	if g.serial() == before {
		t.Error("a new connection gets the certificate from before the renewal")
	}
	g.publish(app, "a", "10") // it stays connected
	kit.Must(t, os.WriteFile(g.key, []byte("half"), 0o600))
	again := g.serial() // the last valid one
	g.ca.issue(g.cert, g.key, time.Now().Add(-time.Minute))
	if _, err := g.dial(&tls.Config{RootCAs: g.ca.pool(), MinVersion: tls.VersionTLS12}); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("the client's error about an expired certificate: %v", err)
	}
	g.ca.issue(g.cert, g.key, time.Now().Add(time.Hour))
	if g.serial() == again {
		t.Error("the certificate after the expired one is not shown")
	}
}

// With a CA of clients each needs a certificate of it, beside its user.
func TestMQTTTLS_ClientCertificate(t *testing.T) {
	clients := newMQTTCA(t)
	g := newSecureGateway(t, func(m *config.MQTT) { m.TLS.ClientCAFile = clients.file() })
	with := func(ca *mqttCA) *tls.Config {
		cert, key := filepath.Join(ca.dir, "client.crt"), filepath.Join(ca.dir, "client.key")
		ca.issue(cert, key, time.Now().Add(time.Hour))
		pair, err := tls.LoadX509KeyPair(cert, key)
		kit.Must(t, err)
		return &tls.Config{RootCAs: g.ca.pool(), Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	app := g.mustDial(with(clients))
	g.publish(app, "a", "9")
	if _, err := g.dial(&tls.Config{RootCAs: g.ca.pool(), MinVersion: tls.VersionTLS12}); err == nil {
		t.Error("a client without a certificate is connected")
	}
	if _, err := g.dial(with(newMQTTCA(t))); err == nil {
		t.Error("a client with a certificate of another CA is connected")
	}
	o := paho.NewClientOptions().AddBroker("ssl://" + g.address).SetClientID("boiler").SetUsername("boiler").SetPassword("wrong").SetAutoReconnect(false).SetTLSConfig(with(clients))
	if token := paho.NewClient(o).Connect(); token.WaitTimeout(20*time.Second) && token.Error() == nil {
		t.Error("a certificate has replaced the password")
	}
}

// mosquitto's client, which uses OpenSSL, publishes over TLS, and refuses a broker of another CA.
func TestMQTTTLS_Mosquitto(t *testing.T) {
	program, err := exec.LookPath("mosquitto_pub")
	if err != nil {
		t.Skip("no mosquitto_pub (package mosquitto-clients)")
	}
	g := newSecureGateway(t, nil)
	g.mustDial(&tls.Config{RootCAs: g.ca.pool(), MinVersion: tls.VersionTLS12}).Disconnect(100) // it listens
	host, port, _ := strings.Cut(g.address, ":")
	publish := func(ca *mqttCA, value string) error {
		out, err := exec.CommandContext(t.Context(), program, "-h", host, "-p", port, "--cafile", ca.file(), "-i", "boiler/pub", "-u", "boiler", "-P", "secret", "-q", "1",
			"-t", "$hw/events/device/default/a/twin/update", "-m", `{"twin":{"temp":{"actual":{"value":"`+value+`"}}}}`).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := publish(newMQTTCA(t), "7"); err == nil {
		t.Error("mosquitto_pub trusts a broker of another CA")
	}
	kit.Must(t, publish(g.ca, "8"))
	g.reported("a", `"8"`)
}

// A certificate that cannot be used keeps the broker from listening, and nothing else; the broker listens once it can be.
func TestMQTTTLS_CertificateComesLater(t *testing.T) {
	var cert, key []byte
	g := newSecureGateway(t, func(m *config.MQTT) {
		var err error
		cert, err = os.ReadFile(m.TLS.CertFile)
		kit.Must(t, err)
		key, err = os.ReadFile(m.TLS.KeyFile)
		kit.Must(t, err)
		kit.Must(t, os.Remove(m.TLS.CertFile))
		kit.Must(t, os.WriteFile(m.TLS.KeyFile, []byte("half"), 0o600))
	})
	if err := g.part.BrokerFault(); err == nil || !strings.Contains(err.Error(), "devices.mqtt.tls") {
		t.Errorf("the fault is %v", err)
	}
	g.noBroker()
	kit.Must(t, os.WriteFile(g.cert, cert, 0o600))
	kit.Must(t, os.WriteFile(g.key, key, 0o600))
	app := g.mustDial(&tls.Config{RootCAs: g.ca.pool(), MinVersion: tls.VersionTLS12})
	g.publish(app, "a", "9")
	g.reported("a", `"9"`)
	kit.Within(t, 30*time.Second, "frond_mqtt_up", func() bool { return gauge(t, g.metrics, "frond_mqtt_up") == 1 })
	if err := g.part.BrokerFault(); err != nil {
		t.Error(err)
	}
}

// Without TLS and beyond loopback the broker does not listen, unless it is allowed. Values that mappers report are taken.
func TestMQTTTLS_NeededBeyondLoopback(t *testing.T) {
	g := newGateway(t)
	g.setDevice("a", "edge-1", "1")
	users := filepath.Join(g.dir, "users.yaml")
	kit.Must(t, os.WriteFile(users, []byte("- {name: boiler, passwordHash: '$2a$04$"+bcryptOf(t, "secret")+"', devices: [default/a]}\n"), 0o600))
	_, port, err := net.SplitHostPort(g.address)
	kit.Must(t, err)
	g.start(func(d *config.Devices) {
		d.MQTT.AllowLoopbackAnonymous, d.MQTT.UsersFile, d.MQTT.Listen = false, users, "0.0.0.0:"+port
	})
	if err := g.part.BrokerFault(); err == nil || !strings.Contains(err.Error(), "allowPlaintext") {
		t.Errorf("the fault is %v", err)
	}
	g.noBroker()
}

// noBroker waits until the gateway follows its Devices, and fails the test if the broker listens.
func (g *gateway) noBroker() {
	g.Helper()
	kit.Within(g, 30*time.Second, "the twin of device a", func() bool { return strings.Contains(g.outbox.last("a"), "{") })
	if conn, err := (&net.Dialer{}).DialContext(g.Context(), "tcp", g.address); err == nil {
		kit.Must(g, conn.Close())
		g.Error("the broker listens")
	}
	if got := gauge(g.T, g.metrics, "frond_mqtt_up"); got != 0 {
		g.Errorf("frond_mqtt_up is %v", got)
	}
}
