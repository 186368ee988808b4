package streams

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// RetryBudget is what Reports remembers of refused reports.
type RetryBudget struct{ *retryBudget }

func NewRetryBudget(total int) RetryBudget { return RetryBudget{newRetryBudget(total)} }

func (r RetryBudget) RecordRefusal(node, subject string, now time.Time) error {
	return r.recordRefusal(node, subject, now)
}
func (r RetryBudget) Reset(node, subject string) { r.reset(node, subject) }

// ReconcileTopology lets a Keeper look once at a hub whose topology is in place.
func (k *TopologyReconciler) ReconcileTopology(ctx context.Context) error {
	ensured := true
	return k.reconcileTopology(ctx, &ensured)
}

// ObserveStream gives a Keeper one look at the stream.
func (k *TopologyReconciler) ObserveStream(epoch string, last uint64) { k.observeStream(epoch, last) }

// PieceRequest is how a cloudcore reads what a node asks for.
func PieceRequest(node string, data []byte) (wire.PieceRequest, error) {
	return parsePieceRequest(node, data)
}

// ParsePieceReply is how a node reads the answer when it has so many bytes of a payload of size, and asked for take.
func ParsePieceReply(msg *nats.Msg, have, size, take int) ([]byte, error) {
	return parsePieceReply(msg, &pendingObject{size: size, received: make([]byte, have)}, take)
}

// DeliveryProgress is a backlog whose marks and messages are told by name.
type DeliveryProgress struct{ deliveryProgress }

// ApplyBatch brings messages, and marks of others, of the given sequences.
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

// Pending are the sequences of the marks.
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

// NoDeadServersQueued tells that no death of a server waits to be looked at.
func (d *Delivery) NoDeadServersQueued() bool { return len(d.deadServers) == 0 }

// PayloadID names a payload with its place in the outbox.
func PayloadID(order, payload string) string { return payloadID(order, []byte(payload)) }

// FindCloudConsumer finds the consumer that all cloudcores share.
func FindCloudConsumer(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.Consumer, error) {
	return findCloudConsumer(ctx, js, stream)
}

// QueuedUploads tells how many large reports wait for a carrier that takes none, after so many states of one object.
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

// ResendLastPart is where the sending of a payload goes on with a new link.
func ResendLastPart(have, last, size int) int {
	sent := map[string]uploadProgress{"": {sent: have, last: last, size: size}}
	resendLastParts(sent)
	return sent[""].sent
}

// NodeLimiter is what Beats knows of how much each node sends.
type NodeLimiter struct{ *nodeLimiter }

func NewNodeLimiter() NodeLimiter { return NodeLimiter{newNodeLimiter()} }

func (b NodeLimiter) Allow(node string, now time.Time) (pass, first bool) { return b.allow(node, now) }
func (b NodeLimiter) NodeCount() int                                      { return len(b.nodes) }

// OverflowTracker is what Reports knows of what is put off.
type OverflowTracker struct{ *overflowTracker }

func NewOverflowTracker(most int) OverflowTracker { return OverflowTracker{newOverflowTracker(most)} }

func (f OverflowTracker) AdmitMessage(node, subject string) { f.admitMessage(node, subject) }
func (f OverflowTracker) DeferMessage(node, subject string, now time.Time) (over, first bool) {
	return f.deferMessage(node, subject, now)
}
