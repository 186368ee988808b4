package devcluster

import (
	"bytes"
	"context"
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

	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/internal/hubconf"
)

// The users of the hub beside the nodes: hubconf.Users.
const (
	cloudUser   = "cloudcore"
	adminUser   = "admin"
	sysUser     = "sys"
	calloutUser = "callout"
	kickerUser  = "kicker"
)

// contextName is the name of the nats CLI's context.
const contextName = "frond-dev"

// cells is how many accounts nodes are spread over: two nodes may share one, or not.
const cells = 4

// writeHub makes the certificates, nkeys and configuration files of the hub's servers and of all that connect to them.
// It returns the names of the servers whose file has changed.
func writeHub(l layout, s state) (changed []string, err error) {
	ca, err := pki.NewAuthority(l.hubPKI(), "ca")
	if err != nil {
		return nil, err
	}
	hubs := numbered("hub", s.Spec.Hubs)
	base := hubconf.Config{CA: ca.Cert, Cells: cells}
	for user, public := range map[string]*string{
		sysUser: &base.Users.System, cloudUser: &base.Users.Cloudcore, adminUser: &base.Users.Admin,
		calloutUser: &base.Users.Callout, kickerUser: &base.Users.Kicker,
	} {
		if *public, err = seed(l.seed(user), nkeys.CreateUser); err != nil {
			return nil, err
		}
		if _, err := ca.Issue(user, pki.Subject{Name: user}); err != nil {
			return nil, err
		}
	}
	if base.Issuer, err = seed(l.seed("issuer"), nkeys.CreateAccount); err != nil {
		return nil, err
	}
	if len(hubs) > 1 {
		for _, h := range hubs {
			base.Routes = append(base.Routes, "nats-route://"+loopback(s.Ports[h+"-cluster"]))
		}
	}
	for _, h := range hubs {
		conf := base
		conf.Name, conf.Store = h, l.in(h, "data")
		if conf.Cert, conf.Key, err = hubCertificate(l, ca, h); err != nil {
			return nil, err
		}
		conf.Client, conf.Leaf = loopback(s.Ports[h]), loopback(s.Ports[h+"-leaf"])
		if len(hubs) > 1 {
			conf.Cluster = loopback(s.Ports[h+"-cluster"])
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

// hubCertificate makes the certificate of a server and the file of it that ends with the authority's.
func hubCertificate(l layout, ca *pki.Authority, hub string) (chain, key string, err error) {
	pair, err := ca.Issue(hub, pki.Subject{Name: hub, Hosts: []string{"127.0.0.1", "::1", "localhost", hub, wan.Gateway}})
	if err != nil {
		return "", "", err
	}
	var data []byte
	for _, file := range []string{pair.Cert, ca.Cert} {
		part, err := os.ReadFile(file)
		if err != nil {
			return "", "", fmt.Errorf("read certificate: %w", err)
		}
		data = append(data, part...)
	}
	chain = filepath.Join(l.hubPKI(), hub+".chain.crt")
	return chain, pair.Key, writeFile(chain, data, 0o644)
}

// writeContexts writes contexts for the nats CLI where XDG_CONFIG_HOME=DIR makes it look, and the admin's once more as
// nats/context.json.
func writeContexts(l layout, s state) error {
	for name, user := range map[string]string{contextName: adminUser, contextName + "-sys": sysUser} {
		c, err := natscontext.New(name, false,
			natscontext.WithServerURL(strings.Join(hubURLs(s), ",")),
			natscontext.WithDescription("Frond development cluster in "+l.dir+", as "+user),
			natscontext.WithNKey(l.seed(user)),
			natscontext.WithCA(l.in("nats", "ca.crt")),
			natscontext.WithCertificate(l.in("nats", user+".crt")),
			natscontext.WithKey(l.in("nats", user+".key")))
		if err != nil {
			return fmt.Errorf("make nats context: %w", err)
		}
		data, err := json.MarshalIndent(c, "", "  ")
		if err != nil {
			return fmt.Errorf("encode nats context: %w", err)
		}
		paths := []string{l.in("nats", "context", name+".json")}
		if user == adminUser {
			paths = append(paths, l.in("nats", "context.json"))
		}
		for _, path := range paths {
			if err := writeFile(path, data, 0o600); err != nil {
				return err
			}
		}
	}
	return writeFile(l.in("nats", "context.txt"), []byte(contextName), 0o600)
}

// hubURLs are the client addresses of the hub's servers.
func hubURLs(s state) []string {
	var urls []string
	for _, h := range numbered("hub", s.Spec.Hubs) {
		urls = append(urls, "nats://"+loopback(s.Ports[h]))
	}
	return urls
}

// seed reads an nkey seed, or makes it, and returns the public key.
func seed(path string, create func() (nkeys.KeyPair, error)) (public string, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		pair, err := create()
		if err != nil {
			return "", fmt.Errorf("make nkey: %w", err)
		}
		if data, err = pair.Seed(); err != nil {
			return "", fmt.Errorf("make nkey: %w", err)
		}
		if err := writeFile(path, data, 0o600); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", fmt.Errorf("read nkey: %w", err)
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(data))
	if err != nil {
		return "", fmt.Errorf("read nkey %s: %w", path, err)
	}
	return pair.PublicKey()
}

// dialHub connects to one server of the hub as sysUser or adminUser.
func dialHub(l layout, url, user string) (*nats.Conn, error) {
	key, err := nats.NkeyOptionFromSeed(l.seed(user))
	if err != nil {
		return nil, fmt.Errorf("read nkey: %w", err)
	}
	nc, err := nats.Connect(url, key, nats.Name("frond dev"), nats.NoReconnect(), nats.Timeout(2*time.Second),
		nats.RootCAs(l.in("nats", "ca.crt")), nats.ClientCert(l.in("nats", user+".crt"), l.in("nats", user+".key")))
	if err != nil {
		return nil, fmt.Errorf("connect to %s as %s: %w", url, user, err)
	}
	return nc, nil
}

// hubReady asks one server about itself. It is ready once it knows the leader of the JetStream cluster and has caught
// up with it.
func hubReady(ctx context.Context, l layout, s state, hub string) error {
	nc, err := dialHub(l, "nats://"+loopback(s.Ports[hub]), sysUser)
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
