package hubtest

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams/subject"
)

// NewKey creates an nkey and returns it with its public half.
func NewKey(tb testing.TB) (nkeys.KeyPair, string) {
	tb.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		tb.Fatalf("make nkey: %v", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		tb.Fatalf("make nkey: %v", err)
	}
	return pair, public
}

// TLSConfig returns a configuration that trusts the hub's CA and no other.
func (h *Hub) TLSConfig() *tls.Config {
	h.tb.Helper()
	pem, err := os.ReadFile(h.CA)
	if err != nil {
		h.tb.Fatalf("hub: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}
}

// StartLeaf runs a bare leaf with a node's key, linked to a listener of the hub (its address, and tls or wss), until the test ends. It
// follows none of Frond's rules, like the leaf of a thief of the key.
func (h *Hub) StartLeaf(scheme, address, node string, key nkeys.KeyPair) *server.Server {
	h.tb.Helper()
	public, err := key.PublicKey()
	if err != nil {
		h.tb.Fatalf("leaf: %v", err)
	}
	r := &server.RemoteLeafOpts{
		URLs: []*url.URL{{Scheme: scheme, Host: address}}, IgnoreDiscoveredServers: true,
		TLS: true, TLSHandshakeFirst: true, TLSTimeout: readyTimeout.Seconds(), TLSConfig: h.TLSConfig(), FirstInfoTimeout: readyTimeout,
		SignatureCB: func(nonce []byte) (string, []byte, error) {
			signature, err := key.Sign(nonce)
			if err != nil {
				return "", nil, err
			}
			show, err := identity.EncodeCredential(identity.Credential{Node: node, Key: public}, signature)
			return "", show, err
		},
	}
	r.Compression.Mode = server.CompressionOff
	o := &server.Options{ServerName: node, DontListen: true, NoSigs: true, NoLog: true, MaxPayload: 8 << 20}
	o.LeafNode.Remotes, o.LeafNode.Compression.Mode, o.LeafNode.ReconnectInterval = []*server.RemoteLeafOpts{r}, server.CompressionOff, 200*time.Millisecond
	s, err := server.NewServer(o)
	if err != nil {
		h.tb.Fatalf("leaf: %v", err)
	}
	s.Start()
	h.tb.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for s.NumLeafNodes() == 0 {
		select {
		case <-deadline.C:
			h.tb.Fatalf("leaf %s has no link", node)
		case <-tick.C:
		}
	}
	return s
}

// RawLeaf is a leaf connection without a server behind it: a test can send any line, also one that no server would send.
type RawLeaf struct {
	conn *tls.Conn
	in   *bufio.Reader
	done sync.WaitGroup

	mu sync.Mutex
	// messages are the received messages, "subject payload"; closeReason is the hub's error; both guarded by mu.
	messages    []string
	closeReason string
}

// ConnectRawLeaf logs in a node at a server's leaf listener. The connection ends with the test.
func (h *Hub) ConnectRawLeaf(i int, node string, key nkeys.KeyPair) *RawLeaf {
	h.tb.Helper()
	r, err := h.dialRawLeaf(i, node, key)
	if err != nil {
		h.tb.Fatalf("leaf %s: %v", node, err)
	}
	h.tb.Cleanup(func() {
		_ = r.conn.Close()
		r.done.Wait()
	})
	return r
}

func (h *Hub) dialRawLeaf(i int, node string, key nkeys.KeyPair) (*RawLeaf, error) {
	conn, err := tls.Dial("tcp", h.LeafAddr(i), h.TLSConfig()) //nolint:noctx // to this process
	if err != nil {
		return nil, err
	}
	r := &RawLeaf{conn: conn, in: bufio.NewReader(conn)}
	info, err := r.in.ReadString('\n')
	if err != nil {
		return nil, err
	}
	var server struct {
		Nonce string `json:"nonce"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(info, "INFO ")), &server); err != nil {
		return nil, err
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	signature, err := key.Sign([]byte(server.Nonce))
	if err != nil {
		return nil, err
	}
	show, err := identity.EncodeCredential(identity.Credential{Node: node, Key: public}, signature)
	if err != nil {
		return nil, err
	}
	connect, err := json.Marshal(map[string]any{
		"server_id": "N-" + node, "name": node, "version": "2.15.2", "headers": true, "sig": base64.RawURLEncoding.EncodeToString(show),
	})
	if err != nil {
		return nil, err
	}
	r.Send("CONNECT " + string(connect))
	r.Send("PING")
	for {
		line, err := r.in.ReadString('\n')
		switch {
		case err != nil:
			return nil, err
		case strings.HasPrefix(line, "-ERR"):
			return nil, fmt.Errorf("%s", line)
		case strings.HasPrefix(line, "PONG"):
			r.done.Go(r.readLoop)
			return r, nil
		}
	}
}

// Send sends one line. It ignores the error when the hub has closed the connection.
func (r *RawLeaf) Send(line string) { _, _ = r.conn.Write([]byte(line + "\r\n")) }

// Publish sends a message; reply may be empty.
func (r *RawLeaf) Publish(subject, reply, payload string) {
	r.Send(strings.Join(strings.Fields(fmt.Sprint("LMSG ", subject, " ", reply, " ", len(payload))), " ") + "\r\n" + payload)
}

// Messages returns the messages received so far, "subject payload".
func (r *RawLeaf) Messages() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.messages...)
}

// CloseReason returns the error with which the hub closed the connection, or "".
func (r *RawLeaf) CloseReason() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closeReason
}

// Close closes the connection.
func (r *RawLeaf) Close() { _ = r.conn.Close() }

// Wait returns when the connection is closed.
func (r *RawLeaf) Wait() { r.done.Wait() }

func (r *RawLeaf) readLoop() {
	for {
		line, err := r.in.ReadString('\n')
		if err != nil {
			return
		}
		verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch verb {
		case "PING":
			r.Send("PONG")
		case "-ERR":
			r.mu.Lock()
			r.closeReason = rest
			r.mu.Unlock()
		case "LMSG", "HMSG":
			fields := strings.Fields(rest)
			size, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil {
				return
			}
			payload := make([]byte, size+2)
			if _, err := io.ReadFull(r.in, payload); err != nil {
				return
			}
			r.mu.Lock()
			r.messages = append(r.messages, fields[0]+" "+strings.TrimSpace(string(payload)))
			r.mu.Unlock()
		}
	}
}

// AnswerCallout answers the auth callout. nodes maps public nkeys to nodes: a link with such a key gets the node's cell, any other key the
// lobby. It checks the signature, which the hub does not. It answers through one server of the hub until the returned connection is
// closed.
func (h *Hub) AnswerCallout(i int, nodes map[string]string) *nats.Conn {
	h.tb.Helper()
	return h.AnswerCalloutBy(i, func(key string) string { return nodes[key] })
}

// AnswerCalloutBy is AnswerCallout with a function that returns the node of a public key, "" for a key of the lobby. Any goroutine calls it.
func (h *Hub) AnswerCalloutBy(i int, nodeOf func(key string) string) *nats.Conn {
	h.tb.Helper()
	nc := h.Connect(i, "callout")
	_, err := nc.QueueSubscribe("$SYS.REQ.USER.AUTH", "cloudcore", func(msg *nats.Msg) {
		answer, err := h.authorizationResponse(string(msg.Data), nodeOf)
		if err != nil {
			h.tb.Logf("callout: %v", err)
			return
		}
		_ = msg.Respond([]byte(answer)) // the requester no longer waits, or asks again
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		h.tb.Fatalf("answer the callout: %v", err)
	}
	return nc
}

func (h *Hub) authorizationResponse(request string, nodeOf func(string) string) (string, error) {
	asked, err := jwt.DecodeAuthorizationRequestClaims(request)
	if err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	claims := jwt.NewAuthorizationResponseClaims(asked.UserNkey)
	claims.Audience = asked.Server.ID
	user, err := h.userClaims(asked, nodeOf)
	if err == nil {
		claims.Jwt, err = user.Encode(h.Issuer)
	}
	if err != nil {
		claims.Error = err.Error()
	}
	return claims.Encode(h.Issuer)
}

func (h *Hub) userClaims(asked *jwt.AuthorizationRequestClaims, nodeOf func(string) string) (*jwt.UserClaims, error) {
	shown, signature, err := identity.DecodeCredential(asked.ConnectOptions.SignedNonce)
	if err != nil {
		return nil, err
	}
	key, err := nkeys.FromPublicKey(shown.Key)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if err := key.Verify([]byte(asked.ClientInformation.Nonce), signature); err != nil {
		return nil, fmt.Errorf("signature: %w", err)
	}
	user := jwt.NewUserClaims(asked.UserNkey)
	user.Name, user.Audience = shown.Key, subject.LobbyAccount
	user.AllowedConnectionTypes.Add(jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS)
	user.Pub.Allow, user.Sub.Allow = allowLists(subject.LobbyPermissions(shown.Key))
	if node := nodeOf(shown.Key); node != "" {
		user.Audience = subject.CellAccount(node, h.Cells)
		user.Pub.Allow, user.Sub.Allow = allowLists(subject.NodePermissions(node))
	}
	return user, nil
}

func allowLists(publish, subscribe []string) (jwt.StringList, jwt.StringList) {
	return publish, subscribe
}
