// Package streamstest starts a real hub for tests: one NATS server with JetStream in the hub's domain, on a free loopback port, with
// Frond's accounts and topology.
package streamstest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
)

// startTimeout is generous: an embedded server is up in some 10 ms on an idle machine.
const startTimeout = 20 * time.Second

// cells is the number of node accounts of the hub: two nodes can share one, and two can be in different ones.
const cells = 2

// accountAuth assigns accounts: a user name is a node's name, and a connection without one is a cloudcore's.
type accountAuth struct{ s *server.Server }

// Check implements server.Authentication.
func (d *accountAuth) Check(c server.ClientAuthentication) bool {
	user, account := &server.User{}, subject.FrondAccount
	if node := c.GetOpts().Username; node != "" {
		account = subject.CellAccount(node, cells)
		publish, subscribe := subject.NodePermissions(node)
		user.Permissions = &server.Permissions{
			Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe},
		}
	}
	var err error
	if user.Account, err = d.s.LookupAccount(account); err == nil {
		c.RegisterUser(user)
	}
	return err == nil
}

// Options returns the options of a server with Frond's accounts and one partition. A connection with a user name, and any password, is that node. Start the
// server with Run.
func Options(t testing.TB, name string) *server.Options {
	t.Helper()
	return options(t, name, subject.Layout{Cells: cells})
}

func options(t testing.TB, name string, layout subject.Layout) *server.Options {
	t.Helper()
	o := &server.Options{}
	if err := o.ProcessConfigString("system_account: SYS\n" + subject.AccountsConfig(layout, nil)); err != nil {
		t.Fatalf("hub accounts: %v", err)
	}
	o.ServerName, o.Host, o.Port, o.NoSigs, o.NoLog, o.MaxPayload = name, "127.0.0.1", server.RANDOM_PORT, true, true, 8<<20
	return o
}

// Run starts a server with the given options. It ends with the test.
func Run(t testing.TB, o *server.Options) *server.Server {
	t.Helper()
	who := &accountAuth{}
	o.CustomClientAuthentication = who
	s, err := server.NewServer(o)
	if err != nil {
		t.Fatalf("hub: %v", err)
	}
	who.s = s
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(startTimeout) {
		t.Fatal("hub not ready")
	}
	return s
}

// Hub starts a hub server with Frond's topology and one partition. It ends with the test.
func Hub(t testing.TB) *server.Server {
	t.Helper()
	return PartitionedHub(t, 1)
}

// Layout is the layout of a hub with the given number of partitions.
func Layout(partitions int) subject.Layout {
	return subject.Layout{Cells: cells, Partitions: partitions}
}

// PartitionedHub starts a hub with one or two partitions. It ends with the test.
func PartitionedHub(t testing.TB, partitions int) *server.Server {
	t.Helper()
	layout := Layout(partitions)
	o := options(t, "hub", layout)
	o.JetStream, o.JetStreamDomain, o.StoreDir = true, subject.HubDomain, t.TempDir()
	s := Run(t, o)
	js, err := jetstream.New(Connect(t, s))
	if err != nil {
		t.Fatalf("hub: %v", err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, layout)); err != nil {
		t.Fatalf("hub topology: %v", err)
	}
	return s
}

// Node opens a connection with a node's cell, permissions and inbox. It closes with the test.
func Node(t testing.TB, s *server.Server, node string, opts ...nats.Option) *nats.Conn {
	t.Helper()
	return Connect(t, s, append(opts, nats.UserInfo(node, ""), nats.CustomInboxPrefix(subject.InboxPrefix(node)))...)
}

// Connect opens a cloudcore's connection. It closes with the test.
func Connect(t testing.TB, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), opts...)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Eventually waits for a condition and fails the test when it does not become true within a minute.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	kit.Eventually(t, what, condition)
}
