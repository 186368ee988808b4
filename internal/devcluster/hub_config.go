package devcluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/internal/hubconf"
	"github.com/frond-edge/frond/internal/install"
)

// contextName is the name of the nats CLI's context.
const contextName = "frond-dev"

// writeHub writes the configuration files of the hub's servers and the nats CLI's contexts. It returns the names of the
// servers whose file has changed.
func writeHub(l clusterLayout, s clusterState, files install.Files) (changed []string, err error) {
	hubs := numberedNames("hub", s.Spec.Hubs)
	base := hubconf.Config{Cells: cells}
	if base.Issuer, base.Users, err = files.HubKeys(); err != nil {
		return nil, err
	}
	if len(hubs) > 1 {
		for _, h := range hubs {
			base.Routes = append(base.Routes, "nats-route://"+loopbackAddress(s.Ports[h+"-cluster"]))
		}
	}
	for i, h := range hubs {
		in := func(entry string) string { return l.secretFile(install.FolderHub(i), entry) }
		conf := base
		conf.Name, conf.Store = h, l.path(h, "data")
		conf.CA, conf.Cert, conf.Key = in(install.EntryBundle), in(install.EntryCert), in(install.EntryKey)
		conf.Client, conf.Leaf = loopbackAddress(s.Ports[h]), loopbackAddress(s.Ports[h+"-leaf"])
		if len(hubs) > 1 {
			conf.Cluster = loopbackAddress(s.Ports[h+"-cluster"])
		}
		data, err := conf.Render()
		if err != nil {
			return nil, err
		}
		data = append([]byte("# Made by \"frond dev up\"; written again by each of them.\n"), data...)
		if old, err := os.ReadFile(l.hubConfig(h)); err == nil && bytes.Equal(old, data) {
			continue
		}
		if err := writeFile(l.hubConfig(h), data, 0o600); err != nil {
			return nil, err
		}
		changed = append(changed, h)
	}
	return changed, writeContexts(l, s)
}

// writeContexts writes contexts for the nats CLI into the folder of XDG_CONFIG_HOME=DIR, and the admin's context once more as
// nats/context.json.
func writeContexts(l clusterLayout, s clusterState) error {
	in := func(entry string) string { return l.secretFile(install.FolderAdmin, entry) }
	for name, seed := range map[string]string{contextName: install.EntryAdminSeed, contextName + "-sys": install.EntrySysSeed} {
		c, err := natscontext.New(name, false,
			natscontext.WithServerURL(strings.Join(hubURLs(s), ",")),
			natscontext.WithDescription("Frond development cluster in "+l.dir),
			natscontext.WithNKey(in(seed)),
			natscontext.WithCA(in(install.EntryBundle)),
			natscontext.WithCertificate(in(install.EntryCert)),
			natscontext.WithKey(in(install.EntryKey)))
		if err != nil {
			return fmt.Errorf("make nats context: %w", err)
		}
		data, err := json.MarshalIndent(c, "", "  ")
		if err != nil {
			return fmt.Errorf("encode nats context: %w", err)
		}
		paths := []string{l.path("nats", "context", name+".json")}
		if name == contextName {
			paths = append(paths, l.path("nats", "context.json"))
		}
		for _, path := range paths {
			if err := writeFile(path, data, 0o600); err != nil {
				return err
			}
		}
	}
	return writeFile(l.path("nats", "context.txt"), []byte(contextName), 0o600)
}

// hubURLs are the client addresses of the hub's servers.
func hubURLs(s clusterState) []string {
	var urls []string
	for _, h := range numberedNames("hub", s.Spec.Hubs) {
		urls = append(urls, "nats://"+loopbackAddress(s.Ports[h]))
	}
	return urls
}

// dialHub connects to one server of the hub with the system account.
func dialHub(l clusterLayout, url string) (*nats.Conn, error) {
	files, err := readMaterial(l)
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
func hubReady(ctx context.Context, l clusterLayout, s clusterState, hub string) error {
	nc, err := dialHub(l, "nats://"+loopbackAddress(s.Ports[hub]))
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

func writeFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := renameio.WriteFile(path, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
