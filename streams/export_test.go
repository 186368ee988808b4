package streams

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// RetryBudget exports retryBudget.
type RetryBudget struct{ *retryBudget }

func NewRetryBudget(total int) RetryBudget { return RetryBudget{newRetryBudget(total)} }

func (r RetryBudget) RecordRefusal(node, subject string, now time.Time) error {
	return r.recordRefusal(node, subject, now)
}
func (r RetryBudget) Reset(node, subject string) { r.reset(node, subject) }

// ReconcileTopology runs one check of a hub whose topology is in place.
func (k *TopologyReconciler) ReconcileTopology(ctx context.Context) error {
	ensured := true
	return k.reconcileTopology(ctx, &ensured)
}

// ObserveStream records one observation of the stream.
func (k *TopologyReconciler) ObserveStream(epoch string, last uint64) { k.observeStream(epoch, last) }

// PieceRequest parses a node's request as a cloudcore does.
func PieceRequest(node string, data []byte) (wire.PieceRequest, error) {
	return parsePieceRequest(node, data)
}

// ParsePieceReply parses a reply as a node does that has have bytes of a payload of size, and requested take.
func ParsePieceReply(msg *nats.Msg, have, size, take int) ([]byte, error) {
	return parsePieceReply(msg, &pendingObject{size: size, received: make([]byte, have)}, take)
}

// DeliveryProgress is a deliveryProgress whose pending objects and messages are identified by name.
type DeliveryProgress struct{ deliveryProgress }

// ApplyBatch applies messages, and pending objects (marks), of the given sequences.
func (b DeliveryProgress) ApplyBatch(messages, marks map[string]uint64, sequence uint64) DeliveryProgress {
	h := deliveryBatch{sequence: sequence}
	for name, sequence := range messages {
		h.messages = append(h.messages, wire.Message{Key: wire.Key{Name: name}, Sequence: sequence})
	}
	for name, sequence := range marks {
		h.pending = append(h.pending, &pendingObject{key: wire.Key{Name: name}, sequence: sequence})
	}
	return DeliveryProgress{b.applyBatch(h)}
}

func (b DeliveryProgress) SafeCursor() uint64 { return b.safeCursor() }
func (b DeliveryProgress) Reached() uint64    { return b.reached }

// Pending returns the sequences of the pending objects.
func (b DeliveryProgress) Pending() map[string]uint64 {
	marks := map[string]uint64{}
	for key, m := range b.pending {
		marks[key.Name] = m.sequence
	}
	return marks
}

// NewSlowTimeoutPump is NewPump with a pump that waits for an hour for the hub's answers.
func NewSlowTimeoutPump(plane Plane, nc *nats.Conn, link Link, metrics *Metrics, log *zap.Logger) (*Pump, error) {
	return newPump(plane, nc, link, time.Hour, metrics, log)
}

// NoDeadServersQueued reports that no death of a server is waiting to be handled.
func (d *Delivery) NoDeadServersQueued() bool { return len(d.deadServers) == 0 }

// PayloadID names a payload by its position in the outbox.
func PayloadID(order, payload string) string { return payloadID(order, []byte(payload)) }

// FindCloudConsumer returns the consumer that all cloudcores share.
func FindCloudConsumer(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.Consumer, error) {
	return findCloudConsumer(ctx, js, stream)
}

// QueuedUploads returns how many large reports are queued while no upload proceeds, after the given number of states of one object.
func QueuedUploads(states int) int {
	var queue []*chunkedReport
	var last *chunkedReport
	for range states {
		if last != nil {
			last.replaced.Store(true)
		}
		last = &chunkedReport{}
		queue = updateUploadQueue(queue, last)
	}
	return len(queue)
}

// ResendLastPart returns the offset at which an upload continues over a new link.
func ResendLastPart(have, last, size int) int {
	sent := map[string]uploadProgress{"": {sent: have, last: last, size: size}}
	resendLastParts(sent)
	return sent[""].sent
}

// NodeLimiter exports nodeLimiter.
type NodeLimiter struct{ *nodeLimiter }

func NewNodeLimiter() NodeLimiter { return NodeLimiter{newNodeLimiter()} }

func (b NodeLimiter) Allow(node string, now time.Time) (pass, first bool) { return b.allow(node, now) }
func (b NodeLimiter) NodeCount() int                                      { return len(b.nodes) }

// OverflowTracker exports overflowTracker.
type OverflowTracker struct{ *overflowTracker }

func NewOverflowTracker(most int) OverflowTracker { return OverflowTracker{newOverflowTracker(most)} }

func (f OverflowTracker) AdmitMessage(node, subject string) { f.admitMessage(node, subject) }
func (f OverflowTracker) DeferMessage(node, subject string, now time.Time) (over, first bool) {
	return f.deferMessage(node, subject, now)
}
