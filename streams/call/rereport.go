package call

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
)

// reportRequestQueue holds requests that arrive while one is handled; further ones are dropped, because a request is only a reminder.
const reportRequestQueue = 256

// verbReport is the verb of the command that carries the key of an object to report again.
const verbReport = "report"

// RequestReport asks a node to report the current state of one of its objects again. It is lossy and has no reply: a node that misses it
// has no link, and reports everything again when the link is back.
func RequestReport(nc *nats.Conn, node string, key wire.Key) error {
	return SendCommand(nc, node, verbReport, []byte(key.String()))
}

// ReportRequests receives on a node the keys of objects to report again.
type ReportRequests struct {
	node    string
	nc      *nats.Conn
	handle  func(ctx context.Context, key wire.Key) error
	metrics *metrics.Metrics
	log     *zap.Logger
}

// NewReportRequests returns the listener of a node; handle reports one object.
func NewReportRequests(node string, nc *nats.Conn, handle func(ctx context.Context, key wire.Key) error, metrics *metrics.Metrics, log *zap.Logger) *ReportRequests {
	return &ReportRequests{node: node, nc: nc, handle: handle, metrics: metrics, log: log}
}

// Start listens until ctx ends and then returns nil.
func (n *ReportRequests) Start(ctx context.Context) error {
	incoming := make(chan *nats.Msg, reportRequestQueue)
	sub, err := n.nc.ChanSubscribe(subject.CommandSubject(n.node, verbReport), incoming)
	if err != nil {
		return fmt.Errorf("hear nudges: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-incoming:
			if !isAuthentic(msg, n.log) {
				n.metrics.DeadLetters.WithLabelValues(string(planeCall)).Inc()
				continue
			}
			// A refused message loses nothing, and the hub's dead letters are unreachable without the link: count and log it.
			key, err := wire.ParseKey(string(msg.Data))
			if err != nil {
				n.metrics.DeadLetters.WithLabelValues(string(planeCall)).Inc()
				n.log.Warn("nudge refused", zap.Error(err))
				continue
			}
			if err := n.handle(ctx, key); err != nil {
				n.log.Warn("object not reported again", zap.String("object", key.Human()), zap.Error(err))
			}
		}
	}
}
