package devcluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/process"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/internal/install"
)

// edgeReady checks edgecore itself and the Node: after a restart the Node alone still shows its earlier state.
func (c *catalog) edgeReady(ctx context.Context, name string) error {
	if _, err := c.api.FromEdge(ctx, name, "http://"+folder.Loopback(c.f.State.Ports[name])+"/readyz"); err != nil {
		return err
	}
	var n corev1.Node
	if err := request.Component(ctx, c.f, request.Kube, "apiserver", "/api/v1/nodes/"+name, &n); err != nil {
		return err
	}
	if ready := readyCondition(&n); ready.Status != corev1.ConditionTrue {
		return fmt.Errorf("node %s: %w: %s", name, process.ErrNotReady, ready.Message)
	}
	return nil
}

func (c *catalog) ctrVersion(ctx context.Context, edge string) error {
	cmd := exec.CommandContext(ctx, c.f.State.Programs.Ctr, "-a", c.f.Layout.Gateway(edge).ContainerdSocket(), "version")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ask containerd: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// readyCondition returns the Ready condition of a Node, with an empty status if it has none.
func readyCondition(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// dialHub connects to one server of the hub with the system account.
func dialHub(l folder.Layout, url string) (*nats.Conn, error) {
	files, err := render.ReadMaterial(l)
	if err != nil {
		return nil, err
	}
	in := func(entry string) []byte { return files[install.FolderAdmin+"/"+entry] }
	key, err := nkeys.FromSeed(bytes.TrimSpace(in(install.EntrySysSeed)))
	if err != nil {
		return nil, fmt.Errorf("read nkey: %w", err)
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("read nkey: %w", err)
	}
	cert, err := tls.X509KeyPair(in(install.EntryCert), in(install.EntryKey))
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	secret := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{cert}}
	secret.RootCAs.AppendCertsFromPEM(in(install.EntryBundle))
	nc, err := nats.Connect(url, nats.Nkey(public, key.Sign), nats.Secure(secret), nats.Name("frond dev"), nats.NoReconnect(), nats.Timeout(2*time.Second))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	return nc, nil
}

// hubReady checks one server. It is ready once it knows the leader of the JetStream cluster and has caught up with it.
func hubReady(ctx context.Context, l folder.Layout, s folder.State, hub string) error {
	nc, err := dialHub(l, "nats://"+folder.Loopback(s.Ports[hub]))
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, "$SYS.REQ.SERVER."+nc.ConnectedServerId()+".HEALTHZ", nil)
	if err != nil {
		return fmt.Errorf("ask health: %w", err)
	}
	var health struct {
		Data struct {
			Status string `json:"status"`
			Error  string `json:"error"`
		} `json:"data"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &health); err != nil {
		return fmt.Errorf("understand health: %w", err)
	}
	switch {
	case health.Error != nil:
		return errors.New(health.Error.Description)
	case health.Data.Status != "ok":
		return fmt.Errorf("%s: %s", health.Data.Status, health.Data.Error)
	}
	return nil
}
