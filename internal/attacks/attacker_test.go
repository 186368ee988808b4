package attacks_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams"
)

// loot is what the thief has found on a gateway's disk.
type loot struct {
	node      string
	addresses []string // of the hub's servers
	secret    *tls.Config
	key       nkeys.KeyPair
	token     string // shown beside the key, if there is one
	from      string // the address that it comes from, if that matters
}

// public is the key's public half.
func (l loot) public() string {
	public, err := l.key.PublicKey()
	if err != nil {
		panic(err) // a pair that was made or read here
	}
	return public
}

// steal reads it.
func steal(t *testing.T, node string) loot {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(shared.Dir(), node, "edgecore.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var c config.EdgeCore
	if err := yaml.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	l := loot{node: node}
	var host string
	for _, text := range c.Hub.URLs {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		l.addresses, host = append(l.addresses, u.Host), u.Hostname()
	}
	seed, err := os.ReadFile(filepath.Join(c.Dir, "identity", "node.nk"))
	if err != nil {
		t.Fatal(err)
	}
	if l.key, err = nkeys.FromSeed(bytes.TrimSpace(seed)); err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(c.Dir, "identity", "hub-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	l.secret = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13, ServerName: host}
	return l
}

// message is what came over the link.
type message struct {
	subject, reply string
	header, data   []byte
}

// thief is one link to the hub, held by somebody who has the key of a gateway. It speaks the leafnode protocol itself, so it asks
// for whatever it likes.
type thief struct {
	node string
	conn net.Conn
	over chan struct{} // closes when the hub has closed the link

	mu    sync.Mutex
	wire  bytes.Buffer // guarded by mu: all that ever came
	got   []message    // guarded by mu
	errs  []string     // guarded by mu: what the hub said before it closed the link
	pongs int          // guarded by mu
	pings int          // of ours; used by one goroutine
	// listening says that call listens; used by one goroutine.
	listening bool
}

// links numbers links: they go to one server of the hub after the other, and one of two with the same name is closed as a doublet.
var links struct {
	sync.Mutex
	n int
}

// breakIn opens a link. more is added to what a leaf says of itself.
func (l loot) breakIn(t *testing.T, more map[string]any) *thief {
	t.Helper()
	th, err := l.tryIn(t.Context(), more)
	if err != nil {
		t.Fatalf("the thief's link: %v", err)
	}
	t.Cleanup(func() {
		_ = th.conn.Close()
		<-th.over
		th.mu.Lock()
		defer th.mu.Unlock()
		searched(t, th.wire.Bytes())
	})
	return th
}

const loginLimit = 30 * time.Second

func (l loot) tryIn(ctx context.Context, more map[string]any) (th *thief, err error) {
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	defer cancel()
	links.Lock()
	links.n++
	address, name := l.addresses[links.n%len(l.addresses)], fmt.Sprintf("thief-%d", links.n)
	links.Unlock()
	plain, err := l.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = plain.Close()
		}
	}()
	_ = plain.SetDeadline(time.Now().Add(loginLimit))
	conn := tls.Client(plain, l.secret)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	info, err := readLine(conn)
	if err != nil {
		return nil, fmt.Errorf("INFO: %w", err)
	}
	hello, err := l.hello(name, info, more)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	_ = plain.SetDeadline(time.Time{})
	th = &thief{node: l.node, conn: conn, over: make(chan struct{})}
	if l.token != "" {
		th.node = l.public() // what it is called in the lobby
	}
	go th.listen()
	if said := th.flush(ctx); said != "" {
		_ = conn.Close()
		<-th.over
		return nil, errors.New(said)
	}
	return th, nil
}

// dial opens a connection, from where the thief is.
func (l loot) dial(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	if l.from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(l.from)}
	}
	return d.DialContext(ctx, "tcp", address)
}

// hello is the CONNECT of a leaf.
func (l loot) hello(name, info string, more map[string]any) ([]byte, error) {
	var server struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(info, "INFO ")), &server); err != nil {
		return nil, fmt.Errorf("%q: %w", info, err)
	}
	sig, err := l.key.Sign([]byte(server.Nonce))
	if err != nil {
		return nil, err
	}
	if sig, err = identity.Show(identity.Credential{Node: l.node, Key: l.public(), Token: l.token}, sig); err != nil {
		return nil, err
	}
	says := map[string]any{
		// A leaf is called as its node, or is let in nowhere; as another cluster's it takes no link of that name's place.
		"server_id": name, "name": l.node, "cluster": name, "sig": base64.RawURLEncoding.EncodeToString(sig), "version": "2.15.2",
		"headers": true, "jetstream": true, "domain": name, "tls_required": true,
	}
	maps.Copy(says, more)
	connect, err := json.Marshal(says)
	return fmt.Appendf(nil, "CONNECT %s\r\n", connect), err
}

// readLine reads byte by byte, so that nothing of what follows is taken.
func readLine(r io.Reader) (string, error) {
	var line []byte
	one := make([]byte, 1)
	for {
		if _, err := io.ReadFull(r, one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return strings.TrimSpace(string(line)), nil
		}
		line = append(line, one[0])
	}
}

// Write notes what came.
func (th *thief) Write(p []byte) (int, error) {
	th.mu.Lock()
	defer th.mu.Unlock()
	return th.wire.Write(p)
}

// listen reads until the link is closed.
func (th *thief) listen() {
	defer close(th.over)
	in := bufio.NewReader(io.TeeReader(th.conn, th))
	for {
		text, err := in.ReadString('\n')
		if err != nil {
			return
		}
		verb, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
		switch verb {
		case "PING":
			_, _ = th.conn.Write([]byte("PONG\r\n")) // or it is closed
		case "PONG":
			th.mu.Lock()
			th.pongs++
			th.mu.Unlock()
		case "-ERR":
			th.mu.Lock()
			th.errs = append(th.errs, rest)
			th.mu.Unlock()
		case "LMSG", "HMSG":
			m, err := readMessage(in, verb, strings.Fields(rest))
			if err != nil {
				return
			}
			th.mu.Lock()
			th.got = append(th.got, m)
			th.mu.Unlock()
		}
	}
}

// readMessage reads what follows SUBJECT [+ REPLY QUEUE… | | QUEUE… | REPLY] [HEADER-BYTES] BYTES.
func readMessage(in io.Reader, verb string, fields []string) (m message, err error) {
	sizes := 1
	if verb == "HMSG" {
		sizes = 2
	}
	if len(fields) <= sizes {
		return m, fmt.Errorf("%s %v", verb, fields)
	}
	m.subject = fields[0]
	switch rest := fields[1 : len(fields)-sizes]; {
	case len(rest) > 1 && rest[0] == "+":
		m.reply = rest[1]
	case len(rest) == 1:
		m.reply = rest[0]
	}
	total, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return m, err
	}
	head := 0
	if sizes == 2 {
		if head, err = strconv.Atoi(fields[len(fields)-2]); err != nil || head > total {
			return m, fmt.Errorf("%v: %w", fields, err)
		}
	}
	body := make([]byte, total+len("\r\n"))
	if _, err := io.ReadFull(in, body); err != nil {
		return m, err
	}
	m.header, m.data = body[:head], body[head:total]
	return m, nil
}

// say sends raw protocol; what it says after the link was closed is lost.
func (th *thief) say(format string, args ...any) {
	_, _ = fmt.Fprintf(th.conn, format, args...)
}

// subscribe asks for a subject, with a queue group if there is one.
func (th *thief) subscribe(subject, queue string) {
	if queue != "" {
		queue = " " + queue + " 1"
	}
	th.say("LS+ %s%s\r\n", subject, queue)
}

// publish sends a message to everybody who listens, and to one of the cloudcores' queue group: a leaf names the groups itself. Headers
// are whole lines.
func (th *thief) publish(subject, reply string, data []byte, headers ...string) {
	to := "| cloudcore"
	if reply != "" {
		to = "+ " + reply + " cloudcore"
	}
	if len(headers) == 0 {
		th.say("LMSG %s %s %d\r\n%s\r\n", subject, to, len(data), data)
		return
	}
	head := "NATS/1.0\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
	th.say("HMSG %s %s %d %d\r\n%s%s\r\n", subject, to, len(head), len(head)+len(data), head, data)
}

// flush waits until the hub has taken all that was said. It returns what the hub said when it closed the link, "" if it did not.
func (th *thief) flush(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	th.pings++
	th.say("PING\r\n")
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		th.mu.Lock()
		pongs := th.pongs
		th.mu.Unlock()
		if pongs >= th.pings {
			return ""
		}
		select {
		case <-th.over:
			th.mu.Lock()
			defer th.mu.Unlock()
			if len(th.errs) == 0 {
				return "closed without a word"
			}
			return strings.Join(th.errs, "; ")
		case <-ctx.Done():
			return "the hub answers no ping"
		case <-ticker.C:
		}
	}
}

// inbox is a place of the thief's own where answers may go.
func (th *thief) inbox() string { return streams.InboxPrefix(th.node) + ".loot" }

// received returns what came on a subject, "" for all.
func (th *thief) received(subject string) []message {
	th.mu.Lock()
	defer th.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(th.got), func(m message) bool { return subject != "" && m.subject != subject })
}

// searched fails if something that a thief got holds the canary.
func searched(t *testing.T, wire []byte) {
	t.Helper()
	for _, form := range [][]byte{[]byte(canary), []byte(base64.StdEncoding.EncodeToString([]byte(canary)))} {
		if i := bytes.Index(wire, form); i >= 0 {
			t.Errorf("the thief got the other gateway's secret: …%q", wire[max(0, i-200):min(len(wire), i+100)])
		}
	}
}
