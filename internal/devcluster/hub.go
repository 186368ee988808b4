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
	"text/template"
	"time"

	"github.com/google/renameio/v2"
	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/streams"
)

// The users of the hub beside the nodes. sysUser belongs to account SYS, the others to account FROND.
const (
	cloudUser = "cloudcore"
	adminUser = "admin"
	sysUser   = "sys"
)

// contextName is the name of the nats CLI's context.
const contextName = "frond-dev"

// hubConf is what the template of a server's configuration file is filled with.
type hubConf struct {
	Name, Store           string
	Client, Cluster, Leaf string
	Routes                []string
	CA, Cert, Key         string
	Sys, Cloudcore, Admin string // public nkeys
	Nodes                 []nodeUser
}

type nodeUser struct {
	Node, Nkey         string
	Publish, Subscribe []string
}

// hubText is the template of a server's configuration: every listener wants a client certificate and every user an nkey, so nobody is anonymous. Nodes may come
// in over leaf links only. Without compression and with isolated interest a leaf costs the hub 91 KB instead of
// megabytes; with pings each 5 s both ends find a half-open link in under 20 s. sync_interval always: an acked message
// is on disk. The servers of a cluster talk over loopback, so they do not compress either.
const hubText = `# Made by "frond dev up"; written again by each of them.
server_name: {{printf "%q" .Name}}
listen: {{printf "%q" .Client}}
max_payload: 8MB
ping_interval: "5s"
ping_max: 2
write_deadline: "10s"
tls { {{template "tls" .}} }

jetstream {
  store_dir: {{printf "%q" .Store}}
  domain: "hub"
  sync_interval: always
  max_memory_store: 256MB
  max_file_store: 4GB
}
{{if .Routes}}
cluster {
  name: "hub"
  listen: {{printf "%q" .Cluster}}
  no_advertise: true
  compression: off
  routes: [{{list .Routes}}]
  tls { {{template "tls" .}} }
}
{{end}}
leafnodes {
  listen: {{printf "%q" .Leaf}}
  no_advertise: true
  compression: off
  isolate_leafnode_interest: true
  tls { {{template "tls" .}} }
}

system_account: SYS
accounts {
  SYS: { users: [ { nkey: {{.Sys}} } ] }
  FROND: {
    jetstream: enabled
    users: [
      { nkey: {{.Cloudcore}}, allowed_connection_types: ["STANDARD"] } # cloudcore
      { nkey: {{.Admin}}, allowed_connection_types: ["STANDARD"] } # people
{{- range .Nodes}}
      { # {{.Node}}
        nkey: {{.Nkey}}, allowed_connection_types: ["LEAFNODE"]
        permissions: {
          publish: { allow: [{{list .Publish}}] }
          subscribe: { allow: [{{list .Subscribe}}] }
        }
      }
{{- end}}
    ]
  }
}
{{define "tls"}}ca_file: {{printf "%q" .CA}}, cert_file: {{printf "%q" .Cert}}, key_file: {{printf "%q" .Key}}, verify: true, timeout: 5{{end}}`

func quotedList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	return strings.Join(quoted, ", ")
}

func (h hubConf) render() ([]byte, error) {
	t, err := template.New("nats-server.conf").Funcs(template.FuncMap{"list": quotedList}).Parse(hubText)
	if err != nil {
		return nil, fmt.Errorf("parse template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, h); err != nil {
		return nil, fmt.Errorf("render configuration of %s: %w", h.Name, err)
	}
	return b.Bytes(), nil
}

// writeHub makes the certificates, nkeys and configuration files of the hub's servers and of all that connect to them.
// It returns the names of the servers whose file has changed.
func writeHub(l layout, s state) (changed []string, err error) {
	ca, err := pki.NewAuthority(l.hubPKI(), "ca")
	if err != nil {
		return nil, err
	}
	hubs := numbered("hub", s.Spec.Hubs)
	base := hubConf{CA: ca.Cert}
	for user, public := range map[string]*string{sysUser: &base.Sys, cloudUser: &base.Cloudcore, adminUser: &base.Admin} {
		if *public, err = seed(l.seed(user)); err != nil {
			return nil, err
		}
		if _, err := ca.Issue(user, pki.Subject{Name: user}); err != nil {
			return nil, err
		}
	}
	for _, edge := range numbered("edge", s.Spec.Edges) {
		public, err := seed(l.edge(edge).seed())
		if err != nil {
			return nil, err
		}
		if _, err := ca.IssueIn(l.edge(edge).dir, "node", pki.Subject{Name: edge}); err != nil {
			return nil, err
		}
		publish, subscribe := streams.NodePermissions(edge)
		base.Nodes = append(base.Nodes, nodeUser{Node: edge, Nkey: public, Publish: publish, Subscribe: subscribe})
	}
	if len(hubs) > 1 {
		for _, h := range hubs {
			base.Routes = append(base.Routes, "nats-route://"+loopback(s.Ports[h+"-cluster"]))
		}
	}
	for _, h := range hubs {
		pair, err := ca.Issue(h, pki.Subject{Name: h, Hosts: []string{"127.0.0.1", "::1", "localhost", h, wan.Gateway}})
		if err != nil {
			return nil, err
		}
		conf := base
		conf.Name, conf.Store, conf.Cert, conf.Key = h, l.in(h, "data"), pair.Cert, pair.Key
		conf.Client = loopback(s.Ports[h])
		conf.Cluster, conf.Leaf = loopback(s.Ports[h+"-cluster"]), loopback(s.Ports[h+"-leaf"])
		data, err := conf.render()
		if err != nil {
			return nil, err
		}
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

// seed reads the nkey seed of a user, or makes it, and returns the public key.
func seed(path string) (public string, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		user, err := nkeys.CreateUser()
		if err != nil {
			return "", fmt.Errorf("make nkey: %w", err)
		}
		if data, err = user.Seed(); err != nil {
			return "", fmt.Errorf("make nkey: %w", err)
		}
		if err := writeFile(path, data, 0o600); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", fmt.Errorf("read nkey: %w", err)
	}
	user, err := nkeys.FromSeed(bytes.TrimSpace(data))
	if err != nil {
		return "", fmt.Errorf("read nkey %s: %w", path, err)
	}
	return user.PublicKey()
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
