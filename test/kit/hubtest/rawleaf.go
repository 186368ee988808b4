package hubtest

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
)

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
