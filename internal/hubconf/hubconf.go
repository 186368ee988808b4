// Package hubconf writes the configuration file of a hub server.
//
// It renders text from plain values, for the tool that installs a hub: it reads no file and creates no key. The accounts and the crossings
// between them are those of package streams. Config says which fields a running server takes by a reload, without losing a link.
package hubconf

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"github.com/frond-edge/frond/streams/subject"
)

const (
	// DefaultCells is the default number of node accounts: 250 nodes each at 16,000 (measured: above 500 the cost of a link for the hub
	// grows with the square).
	DefaultCells = 64

	// MaxPartitions is the largest number of streams of desired state.
	MaxPartitions = subject.MaxPartitions

	defaultMemoryStore = "256MB"
	defaultFileStore   = "4GB"
	// answerTimeout is how many seconds the hub waits for a cloudcore's decision about a link: a cloudcore that has died must not delay
	// the others, and a gateway dials again by itself.
	answerTimeout = 3
	// leafTimeout is how many seconds a link may take to log in, the decision included.
	leafTimeout = 10
)

// Config is the configuration of one hub server. All fields except Name, Store, the addresses of listeners, Cells and Partitions may change under a
// running server: write the file and send SIGHUP. The server also reads its files again then, so a renewed certificate takes no more than
// that.
type Config struct {
	// Name is the server's name; Store is the folder of its streams.
	Name, Store string
	// Client, Cluster, Leaf and Websocket are the addresses of the listeners: host:port. No Cluster: a hub of one server. No Websocket:
	// none.
	Client, Cluster, Leaf, Websocket string
	// Health is the address of the HTTPS listener whose /healthz answers probes. It is open to every client, and serves all that the
	// server reports about itself. "": none.
	Health string
	// Routes are the URLs of all servers of the hub: nats-route://host:port.
	Routes []string
	// Advertise is the address of this server that its peers pass on, host:port with a name of its certificate. "": the address that it
	// connects from.
	Advertise string
	// CA is the file with the CAs of clients and servers that may connect.
	CA string
	// Cert and Key are the files of the server's own certificate. Cert ends with the CA's certificate, so that a joining gateway can
	// compare the CA's hash before it trusts it.
	Cert, Key string
	// Cells is the number of node accounts; fixed when the hub is installed. 0 is DefaultCells.
	Cells int
	// Partitions is the number of streams that hold the desired state of nodes, 0 for one. When it changes, the streams must be built anew.
	Partitions int
	// Issuer is the public account nkey that signs the decisions about links.
	Issuer string
	// Users have fixed accounts; the auth callout decides about all other connections.
	Users Users
	// MemoryStore and FileStore bound the streams, such as 256MB and 4GB, the defaults.
	MemoryStore, FileStore string
}

// Users are the public nkeys of the clients. They also present a client certificate.
type Users struct {
	// Cloudcore uses the streams; Callout receives the callout's requests and identifies links; Kicker lists links, closes them and
	// receives the events that say why one ended. All three are cloudcores, in three accounts.
	Cloudcore, Callout, Kicker string
	// Admin is for operators, with the permissions of a cloudcore. System sees the servers themselves.
	Admin, System string
}

// Validate reports every invalid field.
func (c Config) Validate() error {
	var errs []error
	for name, value := range map[string]string{
		"name": c.Name, "store": c.Store, "client": c.Client, "leaf": c.Leaf, "ca": c.CA, "cert": c.Cert, "key": c.Key,
	} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s: is empty", name))
		}
	}
	for name, key := range map[string]string{
		"users.cloudcore": c.Users.Cloudcore, "users.callout": c.Users.Callout, "users.kicker": c.Users.Kicker,
		"users.admin": c.Users.Admin, "users.system": c.Users.System,
	} {
		if !strings.HasPrefix(key, "U") {
			errs = append(errs, fmt.Errorf("%s: is no public nkey of a user", name))
		}
	}
	if !strings.HasPrefix(c.Issuer, "A") {
		errs = append(errs, errors.New("issuer: is no public nkey of an account"))
	}
	if c.Cells < 0 {
		errs = append(errs, errors.New("cells: is less than 0"))
	}
	if err := (subject.Layout{Cells: cmp.Or(c.Cells, DefaultCells), Partitions: c.Partitions}).Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Render returns the configuration file.
//
// Every listener speaks TLS 1.3. Clients and servers present certificates. Leafs present none, receive nothing before TLS, and have an
// identity only after a cloudcore confirms it. Without compression and with isolated interest a leaf costs little; with pings each 5 s
// both ends find a half-open link in under 20 s. sync_interval always: an acked message is on disk. The servers are in one data centre, so
// they do not compress either. A server that stops in lame duck mode hands over what it leads, announces it, serves its links for two more
// seconds, in which nodes attach elsewhere, and closes them over half a minute, so that gateways do not all dial at once.
func (c Config) Render() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", c.Name, err)
	}
	for field, value := range map[*string]string{&c.MemoryStore: defaultMemoryStore, &c.FileStore: defaultFileStore} {
		if *field == "" {
			*field = value
		}
	}
	if c.Cells == 0 {
		c.Cells = DefaultCells
	}
	t, err := template.New("nats-server.conf").Funcs(template.FuncMap{"list": quotedList}).Parse(configTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, c); err != nil {
		return nil, fmt.Errorf("configuration of %s: %w", c.Name, err)
	}
	return b.Bytes(), nil
}

// AnswerTimeout returns answerTimeout, for the template.
func (Config) AnswerTimeout() int { return answerTimeout }

// LeafTimeout returns leafTimeout, for the template.
func (Config) LeafTimeout() int { return leafTimeout }

// Accounts returns the accounts block.
func (c Config) Accounts() string {
	standard := func(key, more string) string {
		return fmt.Sprintf(`{ nkey: %s, allowed_connection_types: ["STANDARD"]%s }`, key, more)
	}
	publish, subscribe := KickerPermissions()
	kicker := fmt.Sprintf(", permissions: { publish: { allow: [%s] }, subscribe: { allow: [%s] } }", quotedList(publish), quotedList(subscribe))
	users := map[string][]string{
		subject.SystemAccount: {standard(c.Users.System, ""), standard(c.Users.Kicker, kicker)},
		subject.AuthAccount:   {standard(c.Users.Callout, "")},
		subject.FrondAccount:  {standard(c.Users.Cloudcore, ""), standard(c.Users.Admin, "")},
	}
	return subject.AccountsConfig(subject.Layout{Cells: c.Cells, Partitions: c.Partitions}, users)
}

// Known returns the keys for which the server skips the auth callout.
func (c Config) Known() string {
	return strings.Join([]string{c.Users.Cloudcore, c.Users.Callout, c.Users.Kicker, c.Users.Admin, c.Users.System}, ", ")
}

// KickerPermissions are a cloudcore's permissions in the system account: to list links, to learn why one ended, and to close one. Replies
// go to its inbox.
func KickerPermissions() (publish, subscribe []string) {
	return []string{"$SYS.REQ.SERVER.*.LEAFZ", "$SYS.REQ.SERVER.*.KICK"}, []string{"_INBOX.>", "$SYS.ACCOUNT.*.DISCONNECT"}
}

func quotedList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	return strings.Join(quoted, ", ")
}

const configTemplate = `server_name: {{printf "%q" .Name}}
listen: {{printf "%q" .Client}}
{{- if .Health}}
https: {{printf "%q" .Health}}{{end}}
max_payload: 8MB
ping_interval: "5s"
ping_max: 2
write_deadline: "10s"
lame_duck_grace_period: "2s"
lame_duck_duration: "30s"
tls { {{template "mutual" .}} }

jetstream {
  store_dir: {{printf "%q" .Store}}
  domain: "hub"
  sync_interval: always
  max_memory_store: {{.MemoryStore}}
  max_file_store: {{.FileStore}}
}
{{if .Cluster}}
cluster {
  name: "hub"
  listen: {{printf "%q" .Cluster}}
  no_advertise: true
  {{- if .Advertise}}
  advertise: {{printf "%q" .Advertise}}{{end}}
  compression: off
  routes: [{{list .Routes}}]
  tls { {{template "mutual" .}} }
}
{{end}}
leafnodes {
  listen: {{printf "%q" .Leaf}}
  no_advertise: true
  compression: off
  isolate_leafnode_interest: true
  authorization { timeout: {{.LeafTimeout}} }
  tls { {{template "server" .}}, handshake_first: true }
}
{{if .Websocket}}
websocket { # for leafs that have no other way out
  listen: {{printf "%q" .Websocket}}
  compression: false
  handshake_timeout: "5s"
  authorization { timeout: {{.LeafTimeout}} }
  tls { {{template "server" .}} }
}
{{end}}
# Whoever has no place below is asked about on $SYS.REQ.USER.AUTH of AUTH, which a cloudcore answers.
authorization {
  timeout: {{.AnswerTimeout}}
  auth_callout {
    issuer: {{.Issuer}}
    account: AUTH
    auth_users: [{{.Known}}]
  }
}

system_account: SYS
{{.Accounts}}
{{- define "server"}}cert_file: {{printf "%q" .Cert}}, key_file: {{printf "%q" .Key}}, min_version: "1.3", timeout: 5{{end}}
{{- define "mutual"}}ca_file: {{printf "%q" .CA}}, {{template "server" .}}, verify: true{{end}}`
