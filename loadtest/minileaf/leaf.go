package minileaf

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/leaf/redial"
)

// The durations of edgecore's own leaf (package leaf), which a simulated gateway shares.
const (
	defaultPing      = 5 * time.Second
	defaultDial      = 5 * time.Second
	defaultHandshake = 20 * time.Second
	defaultRedialMin = 2 * time.Second
	defaultRedialMax = 15 * time.Second
	defaultStalled   = time.Minute
	// silentPings is how many intervals between pings a link may be silent.
	silentPings = 3
	// writeTimeout bounds one write to a link whose peer does not read.
	writeTimeout = 10 * time.Second
)

// Counters count what all leafs that share them moved. The bytes are those of TLS records, without TCP's own.
type Counters struct {
	Sent, Received atomic.Int64
	// Linked is the number of leafs with a link, Dials how often they dialled, Refused how often the hub or TLS refused a link.
	Linked, Dials, Refused atomic.Int64
	// Unclaimed are messages that no subscription wanted; Dropped are messages that the client published without a link. Forbidden are
	// messages and subscriptions that the hub has not allowed to the link, which are not sent to it.
	Unclaimed, Dropped, Forbidden atomic.Int64
}

// Config configures a Leaf.
type Config struct {
	// Name is the name of the leaf and, as a NATS token, its JetStream domain.
	Name string
	// Domain is Name as one NATS token.
	Domain string
	// Address returns the host and port to dial next.
	Address func() string
	// TLS trusts the hub; leafs may share it. nil: a link without TLS, for tests.
	TLS *tls.Config
	// Credential answers the hub's nonce with what proves the name.
	Credential func(nonce []byte) ([]byte, error)
	// Subscribe are the subjects that the leaf tells the hub to send, whatever the client subscribes to. Those that the hub does not allow
	// to a link are left out: a gateway does not know beforehand in which cell its link ends.
	Subscribe []string
	// Counters are required, and may be shared.
	Counters *Counters
	// PingInterval is the time between pings; 0 is 5 s. RedialMin is the shortest pause between two dials; 0 is 2 s.
	PingInterval, RedialMin time.Duration
}

// Leaf is one leaf node.
type Leaf struct {
	cfg Config
	log *zap.Logger
	// client is the end of the client's connection.
	client *clientEnd
	// redialMax is the longest pause between two dials, in nanoseconds.
	redialMax atomic.Int64
	// recut holds a token when cut has changed.
	recut chan struct{}

	mu      sync.Mutex    // guards all fields below
	cut     bool          // no link may exist
	up      bool          // there is a link
	changed chan struct{} // closed when up changes
	since   time.Time     // when the link was made
	nonce   string        // of the link
}

// New returns a leaf without a link. Start dials.
func New(cfg Config, log *zap.Logger) *Leaf {
	if cfg.PingInterval <= 0 {
		cfg.PingInterval = defaultPing
	}
	if cfg.RedialMin <= 0 {
		cfg.RedialMin = defaultRedialMin
	}
	l := &Leaf{cfg: cfg, log: log, client: newClientEnd(cfg.Counters), recut: make(chan struct{}, 1), changed: make(chan struct{})}
	l.redialMax.Store(int64(max(defaultRedialMax, cfg.RedialMin)))
	return l
}

// State returns whether there is a link, and a channel that closes when that changes. It implements link.Link.
func (l *Leaf) State() (up bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.changed
}

// LinkedSince returns when the link was made; zero without one.
func (l *Leaf) LinkedSince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.up {
		return time.Time{}
	}
	return l.since
}

// Nonce returns the hub's nonce of the latest link; "" before there was one.
func (l *Leaf) Nonce() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nonce
}

// SetRedialMax sets the longest pause between two dials.
func (l *Leaf) SetRedialMax(longest time.Duration) { l.redialMax.Store(int64(longest)) }

// SetCut closes the link and dials no other until it is called with false.
func (l *Leaf) SetCut(cut bool) {
	l.mu.Lock()
	changed := l.cut != cut
	l.cut = cut
	l.mu.Unlock()
	if !changed {
		return
	}
	if cut {
		l.client.closeLink()
	}
	select {
	case l.recut <- struct{}{}:
	default:
	}
}

// Redial closes the link, so that another one is dialled.
func (l *Leaf) Redial() { l.client.closeLink() }

func (l *Leaf) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

func (l *Leaf) setUp(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up == up {
		return
	}
	l.up, l.since = up, time.Now()
	close(l.changed)
	l.changed = make(chan struct{})
	if up {
		l.cfg.Counters.Linked.Add(1)
	} else {
		l.cfg.Counters.Linked.Add(-1)
	}
}

// Start keeps the leaf linked until ctx ends, then closes the link and returns nil.
func (l *Leaf) Start(ctx context.Context) error {
	backoff := redial.Backoff{
		Min: l.cfg.RedialMin, Max: time.Duration(l.redialMax.Load()), StalledMax: max(defaultStalled, l.cfg.RedialMin), Jitter: rand.Float64,
	}
	backoff.StartOutage(time.Now())
	for first := true; ctx.Err() == nil; first = false {
		if l.isCut() {
			select {
			case <-ctx.Done():
			case <-l.recut:
			}
			continue
		}
		backoff.Max = time.Duration(l.redialMax.Load())
		if !first && !l.awaitDial(ctx, backoff.NextDial()) {
			continue
		}
		link, dial := l.dialOnce(ctx)
		now := time.Now()
		if link == nil {
			backoff.ScheduleNext(now, dial.Stalled(now))
			continue
		}
		backoff.EndOutage(now)
		l.serve(ctx, link)
		backoff.StartOutage(time.Now())
	}
	return nil
}

// awaitDial waits until a dial is due; false if it is not, because ctx has ended or the leaf was cut.
func (l *Leaf) awaitDial(ctx context.Context, due time.Time) bool {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-l.recut:
		return false
	case <-timer.C:
		return true
	}
}

// dialOnce dials and logs in, and returns how far the dial came.
func (l *Leaf) dialOnce(ctx context.Context) (*hubLink, redial.Dial) {
	l.cfg.Counters.Dials.Add(1)
	conn, err := (&net.Dialer{Timeout: defaultDial}).DialContext(ctx, "tcp", l.cfg.Address())
	if err != nil {
		l.log.Debug("hub not reached", zap.String("node", l.cfg.Name), zap.Error(err))
		return nil, redial.Dial{}
	}
	dial := redial.Dial{ReachedAt: time.Now()}
	link, err := l.logIn(ctx, &countedConn{Conn: conn, counters: l.cfg.Counters})
	if err != nil {
		_ = conn.Close()
		if ctx.Err() == nil {
			l.cfg.Counters.Refused.Add(1)
			l.log.Info("no link", zap.String("node", l.cfg.Name), zap.Error(err))
		}
		dial.ClosedAt = time.Now()
		return nil, dial
	}
	return link, dial
}

// logIn does what follows on a connection, each stage within the handshake timeout.
func (l *Leaf) logIn(ctx context.Context, conn net.Conn) (*hubLink, error) {
	if l.cfg.TLS != nil {
		secure := tls.Client(conn, l.cfg.TLS)
		stage, cancel := context.WithTimeout(ctx, defaultHandshake)
		defer cancel()
		if err := secure.HandshakeContext(stage); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
		conn = secure
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	link := newHubLink(conn, silentPings*l.cfg.PingInterval)
	if err := link.logIn(l.cfg, time.Now().Add(defaultHandshake)); err != nil {
		return nil, fmt.Errorf("log in: %w", err)
	}
	return link, nil
}

// serve has the client use a link until it ends, and pings the hub.
func (l *Leaf) serve(ctx context.Context, link *hubLink) {
	l.mu.Lock()
	l.nonce = link.nonce
	l.mu.Unlock()
	l.client.setLink(link)
	defer l.client.closeLink()
	if l.isCut() { // meanwhile
		return
	}
	l.setUp(true)
	defer l.setUp(false)
	ticker := time.NewTicker(l.cfg.PingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-link.ended:
			return
		case <-ticker.C:
			if err := link.write([]byte("PING\r\n")); err != nil {
				return
			}
		}
	}
}

// countedConn counts the bytes of a connection.
type countedConn struct {
	net.Conn
	counters *Counters
}

// Read implements net.Conn.
func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.counters.Received.Add(int64(n))
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.counters.Sent.Add(int64(n))
	return n, err
}

// errClosed is what a client reads whose leaf has ended.
var errClosed = errors.New("the leaf has ended")
