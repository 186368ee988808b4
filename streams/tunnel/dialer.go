package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// Dialer opens streams to nodes. Create it with NewDialer and call Start once.
type Dialer struct {
	mux     *mux
	replica string
}

// NewDialer returns a Dialer. It starts nothing. The connection should carry little else: a stream that fills it delays other traffic.
// metrics may be shared with a Server.
func NewDialer(nc *nats.Conn, cfg Config, metrics *Metrics, log *zap.Logger) (*Dialer, error) {
	m, err := newMux(nc, cfg, protocol.DownPrefix, protocol.UpPrefix, metrics, log)
	if err != nil {
		return nil, err
	}
	return &Dialer{mux: m, replica: protocol.NewReplica()}, nil
}

// Start serves until ctx ends, then breaks all streams and returns nil.
func (d *Dialer) Start(ctx context.Context) error {
	return d.mux.serveSubscriptions(ctx, subscription{protocol.UpPrefix + "*." + d.replica + ".*", d.handleMessage}, subscription{protocol.SilentPrefix + "*.*", d.handleSilentNotice})
}

// Ready closes when Dial may be called.
func (d *Dialer) Ready() <-chan struct{} { return d.mux.ready }

type labelKey struct{}

// WithLabel sets the label of the next Dial, which names its user; both ends log it.
func WithLabel(ctx context.Context, label string) context.Context {
	return context.WithValue(ctx, labelKey{}, label)
}

// Dial opens a stream to a port of a node. It returns ErrOffline, a *RefusedError, ErrTooMany, ErrNotServing or ctx's
// error, wrapped. It takes one round trip, and at most Config.OpenTimeout.
func (d *Dialer) Dial(ctx context.Context, node string, port uint16) (*Conn, error) {
	return d.dialTarget(ctx, Addr{Node: node, Port: port})
}

// DialAddress opens a stream to an address that a node reaches, if the node permits it (Server.ListenAddresses). The errors are those of
// Dial; a node that does not know this kind of stream returns a *RefusedError with protocol.CodeVersion.
func (d *Dialer) DialAddress(ctx context.Context, node string, to netip.AddrPort) (*Conn, error) {
	if !to.IsValid() {
		return nil, fmt.Errorf("dial node %s: no address", node)
	}
	return d.dialTarget(ctx, Addr{Node: node, Address: to.Addr().Unmap().WithZone(""), Port: to.Port()})
}

func (d *Dialer) dialTarget(ctx context.Context, target Addr) (*Conn, error) {
	label, _ := ctx.Value(labelKey{}).(string)
	begun := time.Now()
	c, err := d.dialOnce(ctx, target, protocol.SanitizeText(label, protocol.MaxLabel))
	if err != nil {
		d.mux.metrics.countRefused(codeOf(ctx, err))
		d.mux.log.Info("tunnel not opened", append(target.logFields(), zap.String("user", label),
			zap.Duration("took", time.Since(begun)), zap.Error(err))...)
		if target.Address.IsValid() {
			return nil, fmt.Errorf("dial %s at node %s: %w", target.addrPort(), target.Node, err)
		}
		return nil, fmt.Errorf("dial node %s port %d: %w", target.Node, target.Port, err)
	}
	d.mux.metrics.opened.Inc()
	d.mux.log.Info("tunnel opened", append(c.logFields(), zap.Duration("took", time.Since(begun)))...)
	return c, nil
}

// codeOf returns why a dial failed, for metrics.
func codeOf(ctx context.Context, err error) protocol.Code {
	var refused *RefusedError
	var broken *BrokenError
	switch {
	case errors.As(err, &refused):
		return refused.Code
	case errors.As(err, &broken):
		return broken.Code
	case errors.Is(err, ErrOffline):
		return protocol.CodeOffline
	case errors.Is(err, ErrTooMany):
		return protocol.CodeStreams
	case errors.Is(err, ErrNotServing):
		return protocol.CodeStopping
	case ctx.Err() != nil:
		return protocol.CodeGivenUp
	}
	return protocol.CodeHub
}

func (d *Dialer) dialOnce(ctx context.Context, target Addr, label string) (*Conn, error) {
	token := wire.Escape(target.Node)
	silent, err := d.checkSilent(token)
	if err != nil {
		return nil, err
	}
	c, err := d.mux.addStream(d.replica+"."+protocol.NewStreamID(), target, token, label, true)
	if err != nil {
		return nil, err
	}
	if silent == nil { // the first stream of this node
		silent, _ = d.checkSilent(token)
	}
	if err := c.checkSent(c.frames.SendFirst(protocol.OpenFrame(target.addrPort(), label))); err != nil {
		return nil, err
	}
	timer := time.NewTimer(d.mux.cfg.OpenTimeout)
	defer timer.Stop()
	shared := false
	select {
	case <-c.state.Answered():
	case <-silent:
		shared = true
	case <-timer.C:
	case <-ctx.Done():
	}
	return d.dialResult(ctx, c, target.Node, shared)
}

// dialResult returns the result of a dial that was answered or given up; shared means that another dial found the node silent.
func (d *Dialer) dialResult(ctx context.Context, c *Conn, node string, shared bool) (*Conn, error) {
	status := c.state.Status()
	if status.Pending() {
		c.breakStream(&BrokenError{Code: protocol.CodeOffline, Text: "given up"}, true)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !d.mux.nc.IsConnected():
			return nil, errors.New("the hub is not reachable")
		case shared:
			return nil, errSilent
		case c.peer.lastReceived.Load() < c.startedAt.UnixNano():
			d.reportSilent(c.peer)
		}
		return nil, fmt.Errorf("%w: %s did not answer within %v", ErrOffline, node, time.Since(c.startedAt).Round(time.Millisecond))
	}
	broken, ok := errors.AsType[*BrokenError](status.Broken)
	switch {
	case !ok:
		_, err := c.send(nil, 0) // the node measures the round trip with it
		return c, err
	case broken.ByPeer:
		return nil, &RefusedError{Node: node, Address: c.target.Address, Port: c.target.Port, Code: broken.Code, Text: broken.Text}
	case broken.Code == protocol.CodeOffline:
		return nil, fmt.Errorf("%w: the hub has no link to %s", ErrOffline, node)
	case broken.Code == protocol.CodeStopping:
		return nil, ErrNotServing
	}
	return nil, broken
}

// Drop breaks all streams to a node, for instance because its certificate was revoked, and returns how many there were.
func (d *Dialer) Drop(node, reason string) int {
	token, n := wire.Escape(node), 0
	for _, c := range d.mux.listStreams() {
		if c.peer.token == token {
			c.breakStream(&BrokenError{Code: protocol.CodeDropped, Text: reason}, true)
			n++
		}
	}
	return n
}

// handleMessage handles the messages of nodes. Their NATS users may publish below their own token only, so the subject identifies the
// sender.
func (d *Dialer) handleMessage(msg *nats.Msg) {
	token, key, ok := protocol.ParseSubject(protocol.UpPrefix, msg.Subject)
	if !ok {
		d.mux.metrics.countRefused(protocol.CodeGarbage)
		return
	}
	c, stale := d.mux.findStream(key)
	switch {
	case c == nil && stale:
		d.mux.metrics.countRefused(protocol.CodeStale)
	case c == nil:
		d.mux.metrics.countRefused(protocol.CodeUnknown)
	case c.peer.token != token:
		d.mux.metrics.countRefused(protocol.CodeForeign)
		c.foreignLogged.Do(func() { // a node could fill the log
			d.mux.log.Warn("a node sent to another node's stream", zap.String("from", token), zap.String("node", c.target.Node))
		})
	default:
		c.handleMessage(msg)
	}
}
