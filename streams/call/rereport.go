package call

import (
	"context"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/metrics"
)

// reportRequestQueue holds requests that arrive while one is handled; further ones are dropped, because a request is only a reminder.
const reportRequestQueue = 256

// RequestReport asks a node to report the current state of one of its objects again. It is lossy and has no reply: a node that misses it
// has no link, and reports everything again when the link is back.
func RequestReport(nc *nats.Conn, node string, key wire.Key) error {
	return SendCommand(nc, node, VerbReport, []byte(key.String()))
}

// ReportRequests handles the keys of objects to report again, one after the other, so that other commands do not wait for them.
type ReportRequests struct {
	handle  func(ctx context.Context, key wire.Key) error
	pending chan wire.Key
	metrics *metrics.Metrics
	log     *zap.Logger
}

// NewReportRequests returns the requests of a node; handle reports one object. Enqueue is the handler of VerbReport.
func NewReportRequests(handle func(ctx context.Context, key wire.Key) error, metrics *metrics.Metrics, log *zap.Logger) *ReportRequests {
	return &ReportRequests{handle: handle, pending: make(chan wire.Key, reportRequestQueue), metrics: metrics, log: log}
}

// Enqueue adds the object whose key is the payload of a command. It does not block.
func (n *ReportRequests) Enqueue(payload []byte) {
	key, err := wire.ParseKey(string(payload))
	if err != nil {
		n.metrics.DeadLetters.WithLabelValues(string(planeCall)).Inc()
		n.log.Warn("nudge refused", zap.Error(err))
		return
	}
	select {
	case n.pending <- key:
	default:
	}
}

// Start reports objects until ctx ends and then returns nil.
func (n *ReportRequests) Start(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case key := <-n.pending:
			if err := n.handle(ctx, key); err != nil {
				n.log.Warn("object not reported again", zap.String("object", key.Human()), zap.Error(err))
			}
		}
	}
}
