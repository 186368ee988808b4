// Package hubtest runs a real hub for tests, in the test's process, from the configuration that hubconf writes: certificates, accounts,
// auth callout, leaf and WebSocket listeners. It ends with the test.
//
// The auth callout is unanswered until AnswerCallout is called.
package hubtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/hubconf"
	"github.com/frond-edge/frond/test/kit"
)

// readyTimeout bounds the start of all servers; two busy cores need some of it.
const readyTimeout = time.Minute

// Hub is a hub of one or three servers.
type Hub struct {
	// Cells is the number of node accounts.
	Cells int
	// CA is the file of the CA of all certificates.
	CA string
	// Issuer signs the answers of the callout.
	Issuer nkeys.KeyPair

	tb      testing.TB
	dir     string
	ca      *pki.Authority
	users   map[string]nkeys.KeyPair
	configs []string
	servers []*server.Server
}

// Start runs a hub with the given number of servers and one partition.
func Start(tb testing.TB, servers, cells int) *Hub {
	tb.Helper()
	return StartPartitioned(tb, servers, cells, 1)
}

// StartPartitioned runs a hub with the given numbers.
func StartPartitioned(tb testing.TB, servers, cells, partitions int) *Hub {
	tb.Helper()
	h := &Hub{tb: tb, dir: tb.TempDir(), Cells: cells, users: map[string]nkeys.KeyPair{}}
	var err error
	if h.ca, err = pki.NewAuthority(h.dir, "ca"); err != nil {
		tb.Fatalf("hub: %v", err)
	}
	h.CA = h.ca.Cert
	issuer := h.requireKey(nkeys.CreateAccount())
	h.Issuer = issuer
	base := hubconf.Config{CA: h.CA, Cells: cells, Partitions: partitions, Issuer: h.publicKey(issuer), Users: hubconf.Users{
		Cloudcore: h.createUser("cloudcore"), Callout: h.createUser("callout"), Kicker: h.createUser("kicker"), Admin: h.createUser("admin"), System: h.createUser("system"),
	}}
	ports, err := kit.FreePorts(servers)
	if err != nil {
		tb.Fatalf("hub: %v", err)
	}
	if servers > 1 {
		for _, port := range ports {
			base.Routes = append(base.Routes, fmt.Sprintf("nats-route://127.0.0.1:%d", port))
		}
	}
	for i, port := range ports {
		c := base
		c.Name = fmt.Sprintf("hub-%d", i+1)
		c.Store = filepath.Join(h.dir, c.Name)
		c.Client, c.Leaf, c.Websocket = "127.0.0.1:-1", "127.0.0.1:-1", "127.0.0.1:-1"
		if servers > 1 {
			c.Cluster = fmt.Sprintf("127.0.0.1:%d", port)
		}
		c.Cert, c.Key = h.issueServerCert(c.Name)
		data, err := c.Render()
		if err != nil {
			tb.Fatalf("hub: %v", err)
		}
		h.configs = append(h.configs, filepath.Join(h.dir, c.Name+".conf"))
		if err := os.WriteFile(h.configs[i], data, 0o600); err != nil {
			tb.Fatalf("hub: %v", err)
		}
		h.servers = append(h.servers, nil)
		h.Restart(i)
	}
	for _, s := range h.servers {
		if !s.ReadyForConnections(readyTimeout) {
			tb.Fatal("hub not ready")
		}
	}
	h.awaitLeader()
	tb.Cleanup(func() {
		for _, s := range h.servers {
			s.Shutdown()
		}
		for _, s := range h.servers {
			s.WaitForShutdown()
		}
	})
	return h
}

// Restart starts a stopped server; its listeners get other ports.
func (h *Hub) Restart(i int) {
	h.tb.Helper()
	o, err := server.ProcessConfigFile(h.configs[i])
	if err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	o.NoSigs, o.NoLog = true, true
	s, err := server.NewServer(o)
	if err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	s.Start()
	h.servers[i] = s
}

// awaitLeader waits until JetStream has a leader.
func (h *Hub) awaitLeader() {
	h.tb.Helper()
	kit.Within(h.tb, readyTimeout, "the hub has a JetStream leader", h.hasLeader)
}

func (h *Hub) hasLeader() bool {
	if len(h.servers) == 1 {
		return true
	}
	led := false
	for _, s := range h.servers {
		led = led || s.JetStreamIsLeader()
		if !s.JetStreamIsCurrent() || s.NumRoutes() == 0 {
			return false
		}
	}
	return led
}

// Server returns one of the servers.
func (h *Hub) Server(i int) *server.Server { return h.servers[i] }

// ConfigFile returns the configuration file of a server.
func (h *Hub) ConfigFile(i int) string { return h.configs[i] }

// issueServerCert issues a server's certificate; its file ends with the CA's.
func (h *Hub) issueServerCert(name string) (cert, key string) {
	h.tb.Helper()
	pair, err := h.ca.Issue(name, pki.Subject{Name: name, Hosts: []string{"127.0.0.1", "localhost"}})
	if err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	cert = filepath.Join(h.dir, name+".chain.crt")
	var chain []byte
	for _, file := range []string{pair.Cert, h.CA} {
		data, err := os.ReadFile(file)
		if err != nil {
			h.tb.Fatalf("hub: %v", err)
		}
		chain = append(chain, data...)
	}
	if err := os.WriteFile(cert, chain, 0o600); err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	return cert, pair.Key
}

func (h *Hub) createUser(name string) string {
	h.tb.Helper()
	h.users[name] = h.requireKey(nkeys.CreateUser())
	return h.publicKey(h.users[name])
}

func (h *Hub) requireKey(pair nkeys.KeyPair, err error) nkeys.KeyPair {
	h.tb.Helper()
	if err != nil {
		h.tb.Fatalf("hub: make nkey: %v", err)
	}
	return pair
}

func (h *Hub) publicKey(pair nkeys.KeyPair) string {
	h.tb.Helper()
	key, err := pair.PublicKey()
	if err != nil {
		h.tb.Fatalf("hub: nkey: %v", err)
	}
	return key
}

// Connect opens a connection of one of the users cloudcore, callout, kicker, admin or system, to one server and to no other.
func (h *Hub) Connect(i int, user string, opts ...nats.Option) *nats.Conn {
	h.tb.Helper()
	pair, err := h.ca.Issue(user, pki.Subject{Name: user})
	if err != nil {
		h.tb.Fatalf("connect: %v", err)
	}
	sign := func(nonce []byte) ([]byte, error) { return h.users[user].Sign(nonce) }
	opts = append([]nats.Option{
		nats.Name(user), nats.Nkey(h.publicKey(h.users[user]), sign), nats.RootCAs(h.CA), nats.ClientCert(pair.Cert, pair.Key),
		nats.IgnoreDiscoveredServers(), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond),
	}, opts...)
	nc, err := nats.Connect("nats://"+h.servers[i].Addr().String(), opts...)
	if err != nil {
		h.tb.Fatalf("connect as %s: %v", user, err)
	}
	h.tb.Cleanup(nc.Close)
	return nc
}

// LeafAddr returns the address of a server's leaf listener.
func (h *Hub) LeafAddr(i int) string {
	h.tb.Helper()
	v, err := h.servers[i].Varz(nil)
	if err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	return fmt.Sprintf("127.0.0.1:%d", v.LeafNode.Port)
}

// WebsocketAddr returns the address of a server's WebSocket listener.
func (h *Hub) WebsocketAddr(i int) string {
	h.tb.Helper()
	v, err := h.servers[i].Varz(nil)
	if err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	return fmt.Sprintf("127.0.0.1:%d", v.Websocket.Port)
}
