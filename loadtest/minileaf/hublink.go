package minileaf

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// readBuffer holds the line before a message; the payload is read past it.
	readBuffer = 2 << 10
	// maxLine bounds a line of the hub. The longest is INFO, of about 2 KB.
	maxLine = 64 << 10
	// maxQueues bounds the queue groups of the hub that a leaf knows; a hub of Frond has fewer than ten.
	maxQueues = 256
	// maxPayload is the hub's limit of a message.
	maxPayload = 8 << 20
	// serverVersion is the version that the leaf claims: that of the nats-server in edgecore.
	serverVersion = "2.15.2"
)

// hubLink is one connection to the hub that speaks the leaf protocol. One goroutine reads, any may write.
type hubLink struct {
	conn net.Conn
	in   *bufio.Reader
	// silence is how long nothing may arrive.
	silence time.Duration
	nonce   string
	// ended closes when the link was closed.
	ended chan struct{}
	close func()

	writing sync.Mutex // serialises writes

	mu        sync.Mutex      // guards all fields below
	queues    []queueInterest // the hub's subscriptions of queue groups
	permitted permissions
}

// queueInterest is the subscription of a queue group.
type queueInterest struct{ pattern, group string }

func newHubLink(conn net.Conn, silence time.Duration) *hubLink {
	h := &hubLink{conn: conn, silence: silence, ended: make(chan struct{})}
	h.in = bufio.NewReaderSize(silentReader{h}, readBuffer)
	h.close = sync.OnceFunc(func() {
		close(h.ended)
		_ = h.conn.Close()
	})
	return h
}

// silentReader reads from the connection for at most the silence that a link may keep.
type silentReader struct{ link *hubLink }

func (r silentReader) Read(p []byte) (int, error) {
	if err := r.link.conn.SetReadDeadline(time.Now().Add(r.link.silence)); err != nil {
		return 0, err
	}
	return r.link.conn.Read(p)
}

// write writes whole commands.
func (h *hubLink) write(commands []byte) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	if err := h.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := h.conn.Write(commands); err != nil {
		h.close()
		return fmt.Errorf("write to the hub: %w", err)
	}
	return nil
}

// connectLine is what a leaf sends first.
type connectLine struct {
	ID        string `json:"server_id"`
	Name      string `json:"name"`
	Version   string `json:"version"`
	Domain    string `json:"domain"`
	Sig       string `json:"sig,omitempty"`
	Headers   bool   `json:"headers"`
	JetStream bool   `json:"jetstream"`
	Protocol  int    `json:"protocol"`
}

// logIn answers the hub's INFO, subscribes, and waits until the hub has accepted both.
func (h *hubLink) logIn(cfg Config, deadline time.Time) error {
	timer := time.AfterFunc(time.Until(deadline), func() { _ = h.conn.Close() })
	defer timer.Stop()
	line, err := h.readLine()
	if err != nil {
		return err
	}
	var info struct {
		Nonce string `json:"nonce"`
	}
	text, isInfo := strings.CutPrefix(line, "INFO ")
	if !isInfo {
		return fmt.Errorf("the hub began with %.60q, not with INFO", line)
	}
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return fmt.Errorf("the hub's INFO: %w", err)
	}
	h.nonce = info.Nonce
	connect := connectLine{ID: "N-" + cfg.Name, Name: cfg.Name, Version: serverVersion, Domain: cfg.Domain, Headers: true, JetStream: true, Protocol: 1}
	if cfg.Credential != nil {
		sig, err := cfg.Credential([]byte(info.Nonce))
		if err != nil {
			return fmt.Errorf("credential: %w", err)
		}
		connect.Sig = base64.RawURLEncoding.EncodeToString(sig)
	}
	body, err := json.Marshal(connect)
	if err != nil {
		return err
	}
	// What comes before the hub has asked a cloudcore who this is, it forgets: so the subscriptions wait for its answer.
	if err := h.write([]byte("CONNECT " + string(body) + "\r\nPING\r\n")); err != nil {
		return err
	}
	if err := h.awaitPong(); err != nil {
		return err
	}
	var subscribe []byte
	for _, subject := range cfg.Subscribe {
		if !h.maySubscribe(subject) {
			cfg.Counters.Forbidden.Add(1)
			continue
		}
		subscribe = append(subscribe, "LS+ "+subject+"\r\n"...)
	}
	if err := h.write(append(subscribe, "PING\r\n"...)); err != nil {
		return err
	}
	return h.awaitPong()
}

// awaitPong reads until the hub has handled the PING after CONNECT.
func (h *hubLink) awaitPong() error {
	for {
		line, err := h.readLine()
		switch verb, rest, _ := strings.Cut(line, " "); {
		case err != nil:
			return err
		case verb == "-ERR":
			return errors.New(rest)
		case verb == "PONG":
			return nil
		case verb == "PING":
			if err := h.write([]byte("PONG\r\n")); err != nil {
				return err
			}
		case verb == "LMSG" || verb == "HMSG":
			m, err := parseMessage(verb, rest)
			if err != nil {
				return err
			}
			if _, err := h.in.Discard(m.total + len("\r\n")); err != nil {
				return err
			}
		default:
			if err := h.takeNotice(verb, rest); err != nil {
				return err
			}
		}
	}
}

// takeNotice takes what the hub says beside messages.
func (h *hubLink) takeNotice(verb, arguments string) error {
	switch verb {
	case "INFO":
		if err := h.setPermissions(arguments); err != nil {
			return fmt.Errorf("the hub's INFO: %w", err)
		}
	case "LS+", "LS-":
		h.noteInterest(verb, arguments)
	}
	return nil // PONG, +OK
}

// noteInterest keeps what the hub says of queue groups: LS+ SUBJECT GROUP WEIGHT and LS- SUBJECT GROUP.
func (h *hubLink) noteInterest(verb, arguments string) {
	fields := strings.Fields(arguments)
	if len(fields) < 2 { //nolint:mnd // without a group it is no queue's
		return
	}
	named := queueInterest{pattern: fields[0], group: fields[1]}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queues = slices.DeleteFunc(h.queues, func(q queueInterest) bool { return q == named })
	if verb == "LS+" && len(h.queues) < maxQueues {
		h.queues = append(h.queues, named)
	}
}

// queuesOf returns the queue groups that subscribe to a subject.
func (h *hubLink) queuesOf(subject string) (groups []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.queues {
		if matches(q.pattern, subject) && !slices.Contains(groups, q.group) {
			groups = append(groups, q.group)
		}
	}
	return groups
}

// readLine reads one line, without its end.
func (h *hubLink) readLine() (string, error) {
	var long []byte
	for {
		part, err := h.in.ReadSlice('\n')
		if err == nil && long == nil {
			return strings.TrimRight(string(part), "\r\n"), nil
		}
		long = append(long, part...)
		switch {
		case err == nil:
			return strings.TrimRight(string(long), "\r\n"), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return "", err
		case len(long) > maxLine:
			return "", fmt.Errorf("a line of more than %d bytes", maxLine)
		}
	}
}
