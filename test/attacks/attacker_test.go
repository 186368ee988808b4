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
	"github.com/frond-edge/frond/streams/subject"
)

// loot is the content of a stolen gateway's disk that an attacker needs.
type loot struct {
	node      string
	addresses []string // of the hub's servers
	secret    *tls.Config
	key       nkeys.KeyPair
	token     string // sent with the key, if there is one
	sourceIP  string // the source address of its connections, if that matters
}

// publicKey is the key's public half.
func (l loot) publicKey() string {
	public, err := l.key.PublicKey()
	if err != nil {
		panic(err) // a pair that was made or read here
	}
	return public
}

// stealCredentials reads the loot from a gateway's disk.
func stealCredentials(t *testing.T, node string) loot {
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

// leafMessage is a message received over the link.
type leafMessage struct {
	subject, reply string
	header, data   []byte
}

// attacker is one link to the hub with a gateway's key. It speaks the leafnode protocol itself, so it can send any request.
type attacker struct {
	node   string
	conn   net.Conn
	closed chan struct{} // closes when the hub has closed the link

	mu        sync.Mutex
	rawInput  bytes.Buffer  // guarded by mu: all bytes received
	messages  []leafMessage // guarded by mu
	hubErrors []string      // guarded by mu: the hub's errors before it closed the link
	pongs     int           // guarded by mu
	pings     int           // of ours; used by one goroutine
	// listening is set once callCloud has subscribed to the inbox; used by one goroutine.
	listening bool
}

// linkNumbers numbers links: they rotate over the hub's servers, and a server closes one of two links with the same name as a duplicate.
var linkNumbers struct {
	sync.Mutex
	n int
}

// mustOpenLink opens a link. more is merged into the leaf's CONNECT message.
func (l loot) mustOpenLink(t *testing.T, more map[string]any) *attacker {
	t.Helper()
	th, err := l.openLink(t.Context(), more)
	if err != nil {
		t.Fatalf("the thief's link: %v", err)
	}
	t.Cleanup(func() {
		_ = th.conn.Close()
		<-th.closed
		th.mu.Lock()
		defer th.mu.Unlock()
		checkNoCanary(t, th.rawInput.Bytes())
	})
	return th
}

const loginLimit = 30 * time.Second

func (l loot) openLink(ctx context.Context, more map[string]any) (th *attacker, err error) {
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	defer cancel()
	linkNumbers.Lock()
	linkNumbers.n++
	address, name := l.addresses[linkNumbers.n%len(l.addresses)], fmt.Sprintf("thief-%d", linkNumbers.n)
	linkNumbers.Unlock()
	plain, err := l.dialHub(ctx, address)
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
	hello, err := l.connectMessage(name, info, more)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	_ = plain.SetDeadline(time.Time{})
	th = &attacker{node: l.node, conn: conn, closed: make(chan struct{})}
	if l.token != "" {
		th.node = l.publicKey() // its name in the lobby
	}
	go th.readLoop()
	if said := th.flush(ctx); said != "" {
		_ = conn.Close()
		<-th.closed
		return nil, errors.New(said)
	}
	return th, nil
}

// dialHub opens a connection from the attacker's source address.
func (l loot) dialHub(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	if l.sourceIP != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(l.sourceIP)}
	}
	return d.DialContext(ctx, "tcp", address)
}

// connectMessage returns the CONNECT message of a leaf.
func (l loot) connectMessage(name, info string, more map[string]any) ([]byte, error) {
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
	if sig, err = identity.EncodeCredential(identity.Credential{Node: l.node, Key: l.publicKey(), Token: l.token}, sig); err != nil {
		return nil, err
	}
	says := map[string]any{
		// A leaf must have its node's name, or it is not admitted; with a cluster name of its own it replaces no link of that name.
		"server_id": name, "name": l.node, "cluster": name, "sig": base64.RawURLEncoding.EncodeToString(sig), "version": "2.15.2",
		"headers": true, "jetstream": true, "domain": name, "tls_required": true,
	}
	maps.Copy(says, more)
	connect, err := json.Marshal(says)
	return fmt.Appendf(nil, "CONNECT %s\r\n", connect), err
}

// readLine reads byte by byte, so that it does not consume what follows.
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

// Write records received bytes.
func (th *attacker) Write(p []byte) (int, error) {
	th.mu.Lock()
	defer th.mu.Unlock()
	return th.rawInput.Write(p)
}

// readLoop reads until the link is closed.
func (th *attacker) readLoop() {
	defer close(th.closed)
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
			th.hubErrors = append(th.hubErrors, rest)
			th.mu.Unlock()
		case "LMSG", "HMSG":
			m, err := readMessage(in, verb, strings.Fields(rest))
			if err != nil {
				return
			}
			th.mu.Lock()
			th.messages = append(th.messages, m)
			th.mu.Unlock()
		}
	}
}

// readMessage reads the rest of SUBJECT [+ REPLY QUEUE… | | QUEUE… | REPLY] [HEADER-BYTES] BYTES.
func readMessage(in io.Reader, verb string, fields []string) (m leafMessage, err error) {
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

// sendRaw sends raw protocol; it is lost after the link was closed.
func (th *attacker) sendRaw(format string, args ...any) {
	_, _ = fmt.Fprintf(th.conn, format, args...)
}

// subscribe subscribes to a subject, with a queue group if there is one.
func (th *attacker) subscribe(subj, queue string) {
	if queue != "" {
		queue = " " + queue + " 1"
	}
	th.sendRaw("LS+ %s%s\r\n", subj, queue)
}

// publish sends a message to all subscribers, and to one member of the cloudcores' queue group: a leaf names the groups itself. Headers
// are whole lines.
func (th *attacker) publish(subj, reply string, data []byte, headers ...string) {
	to := "| cloudcore"
	if reply != "" {
		to = "+ " + reply + " cloudcore"
	}
	if len(headers) == 0 {
		th.sendRaw("LMSG %s %s %d\r\n%s\r\n", subj, to, len(data), data)
		return
	}
	head := "NATS/1.0\r\n" + strings.Join(headers, "\r\n") + "\r\n\r\n"
	th.sendRaw("HMSG %s %s %d %d\r\n%s%s\r\n", subj, to, len(head), len(head)+len(data), head, data)
}

// flush waits until the hub has processed everything sent. It returns the hub's error if it closed the link, "" if it did not.
func (th *attacker) flush(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	th.pings++
	th.sendRaw("PING\r\n")
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
		case <-th.closed:
			th.mu.Lock()
			defer th.mu.Unlock()
			if len(th.hubErrors) == 0 {
				return "closed without a word"
			}
			return strings.Join(th.hubErrors, "; ")
		case <-ctx.Done():
			return "the hub answers no ping"
		case <-ticker.C:
		}
	}
}

// inbox is a reply subject of the attacker's own.
func (th *attacker) inbox() string { return subject.InboxPrefix(th.node) + ".loot" }

// received returns the messages on a subject, "" for all.
func (th *attacker) received(subj string) []leafMessage {
	th.mu.Lock()
	defer th.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(th.messages), func(m leafMessage) bool { return subj != "" && m.subject != subj })
}

// checkNoCanary fails if received bytes contain the canary.
func checkNoCanary(t *testing.T, wire []byte) {
	t.Helper()
	for _, form := range [][]byte{[]byte(canary), []byte(base64.StdEncoding.EncodeToString([]byte(canary)))} {
		if i := bytes.Index(wire, form); i >= 0 {
			t.Errorf("the thief got the other gateway's secret: …%q", wire[max(0, i-200):min(len(wire), i+100)])
		}
	}
}
