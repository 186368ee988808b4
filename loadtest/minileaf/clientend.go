package minileaf

import (
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// clientBuffer is the client's buffer of commands that are not written yet; it grows where a message needs more.
const clientBuffer = 1 << 10

// clientEnd is the server's end of the client's connection: nats.go reads and writes it as a net.Conn. It turns the client protocol into the
// leaf protocol of the current link.
type clientEnd struct {
	counters *Counters

	// Used by the client's writing alone, which it serialises:
	line    []byte // an incomplete command
	partial []byte // an incomplete message, as the hub will be sent it
	payload int    // bytes of partial that are still to come
	// forbidden says that the hub does not allow the incomplete message; unanswered is the subject on which a reply to it is expected.
	forbidden  bool
	unanswered string

	mu     sync.Mutex // guards all fields below
	wake   *sync.Cond
	out    []byte // what the client is to read next
	link   *hubLink
	subs   []subscription
	closed bool
}

// subscription is one of the client's.
type subscription struct {
	subject, sid string
	// left is how many messages it still takes; 0 is any number.
	left int
}

func newClientEnd(counters *Counters) *clientEnd {
	c := &clientEnd{counters: counters, out: []byte(fmt.Sprintf(
		"INFO {\"server_id\":\"minileaf\",\"version\":%q,\"proto\":1,\"headers\":true,\"max_payload\":%d}\r\n", serverVersion, maxPayload))}
	c.wake = sync.NewCond(&c.mu)
	return c
}

// Connect returns the client of the leaf, to be called once. onError is told what the client cannot tell otherwise, as that a subscription
// did not read in time and has lost messages.
func (l *Leaf) Connect(inboxPrefix string, onError func(error)) (*nats.Conn, error) {
	opts := nats.GetDefaultOptions()
	opts.Url, opts.CustomDialer, opts.InboxPrefix, opts.Name = "nats://minileaf", dialer{l.client}, inboxPrefix, l.cfg.Name
	opts.AllowReconnect, opts.WriteBufferSize, opts.PingInterval = false, clientBuffer, 24*time.Hour //nolint:mnd // the link has its own pings
	opts.AsyncErrorCB = func(_ *nats.Conn, _ *nats.Subscription, err error) { onError(err) }
	nc, err := opts.Connect()
	if err != nil {
		return nil, fmt.Errorf("client of leaf %s: %w", l.cfg.Name, err)
	}
	return nc, nil
}

// dialer hands the client its end.
type dialer struct{ end *clientEnd }

// Dial implements nats.CustomDialer.
func (d dialer) Dial(string, string) (net.Conn, error) { return d.end, nil }

// SkipTLSHandshake says that the connection stays in the process.
func (d dialer) SkipTLSHandshake() bool { return true }

func (c *clientEnd) setLink(link *hubLink) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		link.close()
		return
	}
	c.link = link
	c.wake.Broadcast()
}

// closeLink closes the link, if there is one.
func (c *clientEnd) closeLink() {
	c.mu.Lock()
	link := c.link
	c.link = nil
	c.mu.Unlock()
	if link != nil {
		link.close()
	}
}

// Close implements net.Conn: the client has ended.
func (c *clientEnd) Close() error {
	c.mu.Lock()
	c.closed = true
	c.wake.Broadcast()
	c.mu.Unlock()
	c.closeLink()
	return nil
}

// Read implements net.Conn: what the hub sends to the client's subscriptions. A lost link is no error: Read waits for the next one.
func (c *clientEnd) Read(p []byte) (int, error) {
	for {
		n, link, err := c.next(p)
		if n > 0 || err != nil {
			return n, err
		}
		if err := c.readCommand(link); err != nil {
			c.dropLink(link)
		}
	}
}

// dropLink closes a link, and forgets it if it is the current one.
func (c *clientEnd) dropLink(link *hubLink) {
	c.mu.Lock()
	if c.link == link {
		c.link = nil
	}
	c.mu.Unlock()
	link.close()
}

// next returns what waits for the client, or else a link to read from.
func (c *clientEnd) next(p []byte) (n int, link *hubLink, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.out) == 0 && c.link == nil && !c.closed {
		c.wake.Wait()
	}
	switch {
	case c.closed:
		return 0, nil, errClosed
	case len(c.out) > 0:
		n = copy(p, c.out)
		if c.out = c.out[n:]; len(c.out) == 0 {
			c.out = nil
		}
		return n, nil, nil
	default:
		return 0, c.link, nil
	}
}

// readCommand reads one command of the hub.
func (c *clientEnd) readCommand(link *hubLink) error {
	line, err := link.readLine()
	if err != nil {
		return err
	}
	switch verb, rest, _ := strings.Cut(line, " "); verb {
	case "PING":
		return link.write([]byte("PONG\r\n"))
	case "-ERR":
		return fmt.Errorf("the hub: %s", rest)
	case "LMSG", "HMSG":
		m, err := parseMessage(verb, rest)
		if err != nil {
			return err
		}
		return c.readMessage(link, m)
	default: // PONG, +OK, LS+, LS-, INFO
		return link.takeNotice(verb, rest)
	}
}

// readMessage reads a message whole, so that a link that is lost in it costs the client nothing.
func (c *clientEnd) readMessage(link *hubLink, m message) error {
	sid, wanted := c.claim(m.subject)
	if !wanted {
		c.counters.Unclaimed.Add(1)
		_, err := link.in.Discard(m.total + len("\r\n"))
		return err
	}
	head := m.unwrapped().deliveryLine(sid)
	whole := make([]byte, len(head)+m.total+len("\r\n"))
	copy(whole, head)
	for at := len(head); at < len(whole); {
		n, err := link.in.Read(whole[at:])
		if at += n; err != nil && at < len(whole) {
			return err
		}
	}
	c.mu.Lock()
	c.out = append(c.out, whole...)
	c.mu.Unlock()
	return nil
}

// claim returns the first subscription that wants a subject: those of one client do not overlap.
func (c *clientEnd) claim(subject string) (sid string, wanted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.subs {
		s := &c.subs[i]
		if !matches(s.subject, subject) {
			continue
		}
		sid = s.sid
		if s.left == 1 {
			c.subs = append(c.subs[:i], c.subs[i+1:]...)
		} else if s.left > 1 {
			s.left--
		}
		return sid, true
	}
	return "", false
}

// Write implements net.Conn: it takes the client's commands, in any pieces, and writes whole ones to the link. A lost link is no error: the
// messages are dropped and counted.
func (c *clientEnd) Write(p []byte) (int, error) {
	var toHub []byte
	messages := 0
	for rest := p; len(rest) > 0; {
		if c.payload > 0 {
			n := min(c.payload, len(rest))
			c.partial, rest, c.payload = append(c.partial, rest[:n]...), rest[n:], c.payload-n
			switch {
			case c.payload > 0:
			case c.forbidden:
				c.partial = nil
				c.refuseMessage()
			default:
				toHub, c.partial = append(toHub, c.partial...), nil
				messages++
			}
			continue
		}
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			c.line = append(c.line, rest...)
			break
		}
		line := strings.TrimRight(string(c.line)+string(rest[:end]), "\r")
		c.line, rest = nil, rest[end+1:]
		if err := c.handleCommand(line); err != nil {
			return 0, err
		}
	}
	if messages == 0 {
		return len(p), nil
	}
	c.mu.Lock()
	link := c.link
	c.mu.Unlock()
	if link == nil || link.write(toHub) != nil { // the link ends, and with it what was sent to it
		c.counters.Dropped.Add(int64(messages))
	}
	return len(p), nil
}

// handleCommand handles a command of the client, and begins a message for the hub.
func (c *clientEnd) handleCommand(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	fields := strings.Fields(rest)
	switch strings.ToUpper(verb) {
	case "CONNECT", "PONG", "":
		return nil
	case "PING":
		c.tellClient("PONG\r\n")
		return nil
	case "SUB":
		return c.subscribe(fields)
	case "UNSUB":
		return c.unsubscribe(fields)
	case "PUB":
		return c.beginMessage("LMSG", 1, fields)
	case "HPUB":
		return c.beginMessage("HMSG", 2, fields) //nolint:mnd // header and total
	default:
		return fmt.Errorf("the client sent %.60q", line)
	}
}

// refuseMessage counts a message that the hub does not allow, and tells who expects a reply that nobody hears it, as a leaf does.
func (c *clientEnd) refuseMessage() {
	c.counters.Forbidden.Add(1)
	if c.unanswered == "" {
		return
	}
	if sid, wanted := c.claim(c.unanswered); wanted {
		const header = "NATS/1.0 503\r\n\r\n"
		c.tellClient(message{subject: c.unanswered, header: len(header), total: len(header)}.deliveryLine(sid) + header + "\r\n")
	}
}

// tellClient has the client read something that does not come from the hub. The client may be reading from the link: the answer to a PING lets
// it go on.
func (c *clientEnd) tellClient(text string) {
	c.mu.Lock()
	c.out = append(c.out, text...)
	link := c.link
	c.wake.Broadcast()
	c.mu.Unlock()
	if link != nil {
		_ = link.write([]byte("PING\r\n")) // a link that ends lets it go on, too
	}
}

// beginMessage begins a message of the client. Its last arguments are its sizes, before them are the subject and perhaps a reply subject.
func (c *clientEnd) beginMessage(verb string, sizes int, fields []string) error {
	if len(fields) < 1+sizes {
		return fmt.Errorf("the client sent %s %q", verb, fields)
	}
	names, numbers := fields[:len(fields)-sizes], fields[len(fields)-sizes:]
	size, err := parseSize(numbers[sizes-1])
	if err != nil {
		return err
	}
	c.mu.Lock()
	link := c.link
	c.mu.Unlock()
	var queues []string
	c.forbidden, c.unanswered = false, ""
	if link != nil {
		queues, c.forbidden = link.queuesOf(names[0]), !link.mayPublish(names[0])
	}
	if len(names) > 1 {
		c.unanswered = names[1]
	}
	// A leaf names the queue groups that are to have a message: the hub gives it to no other.
	switch {
	case len(queues) > 0 && len(names) > 1:
		names = append([]string{names[0], "+", names[1]}, queues...)
	case len(queues) > 0:
		names = append([]string{names[0], "|"}, queues...)
	}
	head := verb + " " + strings.Join(append(names, numbers...), " ") + "\r\n"
	c.payload = size + len("\r\n")
	c.partial = append(make([]byte, 0, len(head)+c.payload), head...)
	return nil
}

func (c *clientEnd) subscribe(fields []string) error {
	if len(fields) < 2 { //nolint:mnd // subject and sid
		return fmt.Errorf("the client subscribes to %q", fields)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subs = append(c.subs, subscription{subject: fields[0], sid: fields[len(fields)-1]})
	return nil
}

func (c *clientEnd) unsubscribe(fields []string) error {
	if len(fields) == 0 {
		return fmt.Errorf("the client unsubscribes from nothing")
	}
	left := 0
	if len(fields) > 1 {
		var err error
		if left, err = strconv.Atoi(fields[1]); err != nil {
			return fmt.Errorf("the client unsubscribes after %.20q: %w", fields[1], err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.subs {
		if c.subs[i].sid != fields[0] {
			continue
		}
		if left > 0 {
			c.subs[i].left = left
		} else {
			c.subs = append(c.subs[:i], c.subs[i+1:]...)
		}
		break
	}
	return nil
}

// clientAddr is the address of both ends.
type clientAddr struct{}

func (clientAddr) Network() string { return "minileaf" }
func (clientAddr) String() string  { return "minileaf" }

// LocalAddr implements net.Conn.
func (c *clientEnd) LocalAddr() net.Addr { return clientAddr{} }

// RemoteAddr implements net.Conn.
func (c *clientEnd) RemoteAddr() net.Addr { return clientAddr{} }

// SetDeadline implements net.Conn; the link has its own deadlines.
func (c *clientEnd) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (c *clientEnd) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (c *clientEnd) SetWriteDeadline(time.Time) error { return nil }
