package hubload

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// leafClient simulates a node towards the hub: one leaf connection over TLS that speaks the leafnode protocol, has the
// subscriptions of an edgecore, and keeps one pull open. It has no server behind it, so a process can hold thousands.
type leafClient struct {
	node string
	conn net.Conn
	in   *bufio.Reader
	// delivered counts messages of the node's consumer.
	delivered *atomic.Int64
}

const (
	// connectTimeout bounds a connect: thousands run concurrently on two cores.
	connectTimeout = time.Minute
	// pullTimeout is the duration of one pull, as with an edgecore; idleHeartbeat is the heartbeat interval that it requests.
	pullTimeout   = 30 * time.Second
	idleHeartbeat = 3 * time.Second
)

// dialLeaf connects, logs in and subscribes.
func dialLeaf(ctx context.Context, address, node string, config *tls.Config, delivered *atomic.Int64) (l *leafClient, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if l, err = logInLeaf(ctx, conn, node, delivered); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return l, nil
}

// logInLeaf logs in on a connection and subscribes. It closes the connection if ctx ends meanwhile.
func logInLeaf(ctx context.Context, conn net.Conn, node string, delivered *atomic.Int64) (*leafClient, error) {
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	l := &leafClient{node: node, conn: conn, in: bufio.NewReaderSize(conn, 512), delivered: delivered}
	connect, err := json.Marshal(map[string]any{
		"server_id": "N-" + node, "name": node, "user": wire.Escape(node), "pass": hubPassword, "version": "2.15.2",
		"headers": true, "jetstream": true, "domain": wire.Escape(node), "tls_required": true,
	})
	if err != nil {
		return nil, err
	}
	n := wire.Escape(node)
	hello := []string{"CONNECT " + string(connect)}
	for _, subj := range []string{subject.InboxPrefix(node) + ".>", "call.node." + n + ".report", "call.node." + n + ".audit"} {
		hello = append(hello, "LS+ "+subj)
	}
	if _, err := l.conn.Write([]byte(strings.Join(append(hello, "PING", ""), "\r\n"))); err != nil {
		return nil, fmt.Errorf("log in: %w", err)
	}
	for {
		line, err := l.readCommand()
		switch {
		case err != nil:
			return nil, fmt.Errorf("log in: %w", err)
		case strings.HasPrefix(line, "-ERR"):
			return nil, errors.New("log in: " + line)
		case line == "PONG":
			return l, nil
		}
	}
}

// readCommand returns the next line that is neither a message nor a ping; it answers pings and skips messages.
func (l *leafClient) readCommand() (string, error) {
	for {
		text, err := l.in.ReadString('\n')
		if err != nil {
			return "", err
		}
		text = strings.TrimSpace(text)
		switch verb, rest, _ := strings.Cut(text, " "); verb {
		case "PING":
			if _, err := l.conn.Write([]byte("PONG\r\n")); err != nil {
				return "", err
			}
		case "LMSG", "HMSG", "MSG":
			if err := l.skipMessage(rest); err != nil {
				return "", err
			}
		default:
			return text, nil
		}
	}
}

// skipMessage reads past a message; a message with an ack subject is a delivery.
func (l *leafClient) skipMessage(arguments string) error {
	fields := strings.Fields(arguments)
	if len(fields) == 0 {
		return errors.New("message without arguments")
	}
	size, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return fmt.Errorf("message %q: %w", arguments, err)
	}
	if strings.Contains(arguments, " $JS.ACK.") {
		l.delivered.Add(1)
	}
	_, err = l.in.Discard(size + len("\r\n"))
	return err
}

// sendPull requests messages from the node's consumer.
func (l *leafClient) sendPull() error {
	n := wire.Escape(l.node)
	body := fmt.Sprintf(`{"batch":256,"expires":%d,"idle_heartbeat":%d}`, pullTimeout.Nanoseconds(), idleHeartbeat.Nanoseconds())
	subj := "consumer." + n + ".next"
	_, err := fmt.Fprintf(l.conn, "LMSG %s %s %d\r\n%s\r\n", subj, subject.InboxPrefix(l.node)+".pull", len(body), body)
	return err
}

// serve reads until the connection is closed, and renews the pull.
func (l *leafClient) serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.conn.Close() })
	defer stop()
	if err := l.sendPull(); err != nil {
		return err
	}
	for renewed := time.Now(); ; {
		if err := l.conn.SetReadDeadline(renewed.Add(pullTimeout)); err != nil {
			return l.closeError(ctx, err)
		}
		line, err := l.readCommand()
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout():
			if err := l.sendPull(); err != nil {
				return l.closeError(ctx, err)
			}
			renewed = time.Now()
		case err != nil:
			return l.closeError(ctx, err)
		case strings.HasPrefix(line, "-ERR"):
			return l.closeError(ctx, errors.New(line))
		}
	}
}

// closeError turns the error of a close by ctx into nil.
func (l *leafClient) closeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // we were asked to stop
	}
	return fmt.Errorf("leaf of %s: %w", l.node, err)
}
