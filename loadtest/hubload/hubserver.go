// Package hubload attaches many simulated nodes to one hub server of their own.
//
// The server, the attaches and the consumers are real; nodes speak the protocol alone.
package hubload

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/internal/hubconf"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// ObjectsEach is the number of objects of an ordinary gateway: some pods and the objects they refer to.
	ObjectsEach = 10
	// maxDialers bounds the concurrent connects and attaches.
	maxDialers = 16
	// objectBytes is the size of an object's content.
	objectBytes = 512
)

// nodeName names a simulated node.
func nodeName(i int) string { return fmt.Sprintf("gw-%05d", i) }

// Server is a hub of one server with the usual accounts (internal/hubconf), except that nodes are users with passwords, so that
// no answer of a cloudcore is part of the measurement.
type Server struct {
	// ctx ends with the server; leafs are the connections of nodes.
	ctx   context.Context //nolint:containedctx // it is the life of a process that outlasts the call that starts it
	stop  context.CancelFunc
	leafs errgroup.Group
	// attached is the number of nodes, delivered counts the changes that they received.
	attached  int
	delivered atomic.Int64
	dir       string
	cmd       *exec.Cmd
	nc        *nats.Conn
	publisher *publish.Publisher
	attacher  *publish.Attacher
	client    *tls.Config
	// address and leaf are the listeners for clients and nodes.
	address, leaf string
}

const hubPassword = "loadtest" // for a server on loopback that runs for minutes

// Start starts a server with this many node users.
func Start(ctx context.Context, nodes int) (h *Server, err error) {
	paths, err := toolchain.Find(ctx, toolchain.Request{Nats: true})
	if err != nil {
		return nil, err
	}
	h = &Server{}
	if h.dir, err = os.MkdirTemp("", "frond-hub-"); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	h.ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := h.launch(ctx, paths.NatsServer, nodes); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// launch starts the server and connects as a cloudcore, for nodes that attach.
func (h *Server) launch(ctx context.Context, program string, nodes int) error {
	if err := h.writeConfig(ctx, nodes); err != nil {
		return err
	}
	//nolint:contextcheck // it lives as long as the hub, not as long as its start
	cmd := exec.CommandContext(h.ctx, program, "-c", filepath.Join(h.dir, "hub.conf"), "-l", filepath.Join(h.dir, "log"))
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the hub: %w", err)
	}
	h.cmd = cmd
	err := poll.Until(ctx, "the hub answers", func(ctx context.Context) (bool, error) {
		nc, err := nats.Connect("nats://"+h.address, nats.Secure(h.client.Clone()), nats.UserInfo("cloud", hubPassword), nats.MaxReconnects(-1), nats.Timeout(connectTimeout))
		if err != nil {
			return false, nil //nolint:nilerr // it does not listen yet
		}
		js, err := jetstream.New(nc)
		if err != nil || topology.Ensure(ctx, js, topology.HubTopology(1, subject.Layout{})) != nil {
			nc.Close()
			return false, err
		}
		h.nc = nc
		return true, nil
	})
	if err != nil {
		return err
	}
	counters, unknown := metrics.New(nil), func(context.Context, string) bool { return false }
	if h.publisher, err = publish.NewPublisher(h.nc, subject.Layout{}, counters); err != nil {
		return err
	}
	h.attacher, err = publish.NewAttacher(publish.AttacherConfig{NodeExists: unknown}, h.nc, subject.Layout{}, counters, zap.NewNop())
	return err
}

// writeConfig writes the certificates and the configuration.
func (h *Server) writeConfig(ctx context.Context, nodes int) error {
	ca, err := pki.NewAuthority(h.dir, "ca")
	if err != nil {
		return err
	}
	pair, err := ca.Issue("hub", pki.Subject{Name: "hub", Hosts: []string{"127.0.0.1"}})
	if err != nil {
		return err
	}
	if _, err := ca.Issue("node", pki.Subject{Name: "node"}); err != nil {
		return err
	}
	if h.client, err = request.ClientTLS(ca.Cert, filepath.Join(h.dir, "node")); err != nil {
		return err
	}
	h.client.ServerName = "127.0.0.1"
	for _, address := range []*string{&h.address, &h.leaf} {
		if *address, err = freeAddress(ctx); err != nil {
			return err
		}
	}
	secure := fmt.Sprintf("ca_file: %q, cert_file: %q, key_file: %q, verify: true, timeout: 5", ca.Cert, pair.Cert, pair.Key)
	var conf strings.Builder
	fmt.Fprintf(&conf, `server_name: "hub"
listen: %q
max_payload: 8MB
ping_interval: "5s"
ping_max: 6
write_deadline: "10s"
tls { %s }
jetstream { store_dir: %q, domain: "hub", sync_interval: always, max_memory_store: 2GB, max_file_store: 8GB }
leafnodes { listen: %q, no_advertise: true, compression: off, isolate_leafnode_interest: true, tls { %s, handshake_first: true } }
system_account: SYS
`, h.address, secure, filepath.Join(h.dir, "data"), h.leaf, secure)
	users := map[string][]string{subject.FrondAccount: {fmt.Sprintf("{ user: cloud, password: %q }", hubPassword)}}
	for i := range nodes {
		publish, subscribe := subject.NodePermissions(nodeName(i))
		cell := subject.CellAccount(nodeName(i), hubconf.DefaultCells)
		users[cell] = append(users[cell], fmt.Sprintf(`{ user: %q, password: %q, permissions: { publish: { allow: ["%s"] }, subscribe: { allow: ["%s"] } } }`,
			wire.Escape(nodeName(i)), hubPassword, strings.Join(publish, `", "`), strings.Join(subscribe, `", "`)))
	}
	conf.WriteString(subject.AccountsConfig(subject.Layout{Cells: hubconf.DefaultCells}, users))
	if err := os.WriteFile(filepath.Join(h.dir, "hub.conf"), []byte(conf.String()), 0o600); err != nil {
		return fmt.Errorf("configure the hub: %w", err)
	}
	return nil
}

func freeAddress(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}

// PID returns the process id of the server.
func (h *Server) PID() int { return h.cmd.Process.Pid }

// Close closes the connections, then stops the server, and removes its files.
func (h *Server) Close() error {
	h.nc.Close()
	h.stop() // kills the server, too
	err := h.leafs.Wait()
	if h.cmd != nil {
		_ = h.cmd.Wait() // it was killed
	}
	return errors.Join(err, os.RemoveAll(h.dir))
}

// publishObject stores one object of a node.
func (h *Server) publishObject(ctx context.Context, node string, i int) error {
	_, err := h.publisher.Publish(ctx, wire.Message{
		Node: node, Key: wire.Key{Resource: "configmaps", Namespace: "loadtest", Name: fmt.Sprintf("config-%d", i)}, Op: wire.Apply, UID: "uid", Version: "1", Time: time.Now(),
		Object: fmt.Appendf(nil, `{"data":{"content":%q}}`, strings.Repeat("x", objectBytes)),
	}, 0)
	return err
}

// attachNode publishes a node's objects and creates its consumer.
func (h *Server) attachNode(ctx context.Context, node string) error {
	for i := range ObjectsEach {
		if err := h.publishObject(ctx, node, i); err != nil {
			return err
		}
	}
	request, err := json.Marshal(wire.AttachRequest{Cursor: wire.Cursor{StoreEpoch: "s"}})
	if err != nil {
		return err
	}
	return poll.Until(ctx, "the hub lets "+node+" attach", func(ctx context.Context) (bool, error) {
		_, err := h.attacher.Handle(ctx, node, request)
		return err == nil, nil
	})
}

// AttachNodes raises the number of nodes to n.
func (h *Server) AttachNodes(ctx context.Context, n int) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxDialers)
	for ; h.attached < n; h.attached++ {
		node := nodeName(h.attached)
		g.Go(func() error {
			if err := h.attachNode(gctx, node); err != nil {
				return fmt.Errorf("attach %s: %w", node, err)
			}
			l, err := dialLeaf(gctx, h.leaf, node, h.client, &h.delivered)
			if err != nil {
				return fmt.Errorf("connect %s: %w", node, err)
			}
			h.leafs.Go(func() error { return l.serve(h.ctx) })
			return nil
		})
	}
	return g.Wait()
}

// VerifyDelivery changes one object of each node and waits until all nodes have received their change.
func (h *Server) VerifyDelivery(ctx context.Context) error {
	before := h.delivered.Load()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxDialers)
	for i := range h.attached {
		g.Go(func() error { return h.publishObject(gctx, nodeName(i), ObjectsEach) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return poll.Until(ctx, "each node gets a change", func(context.Context) (bool, error) {
		return h.delivered.Load()-before >= int64(h.attached), nil
	})
}
