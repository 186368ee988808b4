package streams

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// Refusals is what Reports remembers of refused reports.
type Refusals struct{ *refusals }

func NewRefusals(total int) Refusals { return Refusals{newRefusals(total)} }

func (r Refusals) Note(node, subject string, now time.Time) error { return r.note(node, subject, now) }
func (r Refusals) Settle(node, subject string)                    { r.settle(node, subject) }

// Look lets a Keeper look once at a hub whose topology is in place.
func (k *Keeper) Look(ctx context.Context) error {
	ensured := true
	return k.look(ctx, &ensured)
}

// Note gives a Keeper one look at the stream.
func (k *Keeper) Note(epoch string, last uint64) { k.note(epoch, last) }

// PieceRequest is how a cloudcore reads what a node asks for.
func PieceRequest(node string, data []byte) (wire.PieceRequest, error) {
	return readPieceRequest(node, data)
}

// PieceOf is how a node reads the answer when it has so many bytes of a payload of size, and asked for take.
func PieceOf(msg *nats.Msg, have, size, take int) ([]byte, error) {
	return pieceOf(msg, &mark{size: size, have: make([]byte, have)}, take)
}

// Backlog is a backlog whose marks and messages are told by name.
type Backlog struct{ backlog }

// After brings messages, and marks of others, of the given sequences.
func (b Backlog) After(messages, marks map[string]uint64, sequence uint64) Backlog {
	h := haul{sequence: sequence}
	for name, sequence := range messages {
		h.messages = append(h.messages, wire.Message{Key: wire.Key{Name: name}, Sequence: sequence})
	}
	for name, sequence := range marks {
		h.marks = append(h.marks, &mark{key: wire.Key{Name: name}, sequence: sequence})
	}
	return Backlog{b.after(h)}
}

func (b Backlog) Low() uint64     { return b.low() }
func (b Backlog) Reached() uint64 { return b.reached }

// Marks are the sequences of the marks.
func (b Backlog) Marks() map[string]uint64 {
	marks := map[string]uint64{}
	for key, m := range b.marks {
		marks[key.Name] = m.sequence
	}
	return marks
}

// NewPatientPump is NewPump with a pump that waits for an hour for the hub's answers.
func NewPatientPump(plane Plane, nc *nats.Conn, link Link, metrics *Metrics, log *zap.Logger) (*Pump, error) {
	return newPump(plane, nc, link, time.Hour, metrics, log)
}

// Obeyed tells that no death of a server waits to be looked at.
func (d *Delivery) Obeyed() bool { return len(d.died) == 0 }

// IDOfParts names a payload with its place in the outbox.
func IDOfParts(order, payload string) string { return idOfParts(order, []byte(payload)) }

// HiddenConsumer finds the consumer that all cloudcores share.
func HiddenConsumer(ctx context.Context, js jetstream.JetStream, stream string) (jetstream.Consumer, error) {
	return cloudConsumerOf(ctx, js, stream)
}

// Queued tells how many large reports wait for a carrier that takes none, after so many states of one object.
func Queued(states int) int {
	var queue []*parcel
	var last *parcel
	for range states {
		if last != nil {
			last.replaced.Store(true)
		}
		last = &parcel{}
		queue = queued(queue, last)
	}
	return len(queue)
}

// ProveAgain is where the sending of a payload goes on with a new link.
func ProveAgain(have, last, size int) int {
	sent := map[string]progress{"": {have: have, last: last, size: size}}
	proveAgain(sent)
	return sent[""].have
}

// Brakes is what Beats knows of how much each node sends.
type Brakes struct{ *brakes }

func NewBrakes() Brakes { return Brakes{newBrakes()} }

func (b Brakes) Pass(node string, now time.Time) (pass, first bool) { return b.pass(node, now) }
func (b Brakes) Nodes() int                                         { return len(b.nodes) }

// Floods is what Reports knows of what is put off.
type Floods struct{ *floods }

func NewFloods(most int) Floods { return Floods{newFloods(most)} }

func (f Floods) Taken(node, subject string) { f.taken(node, subject) }
func (f Floods) Note(node, subject string, now time.Time) (over, first bool) {
	return f.note(node, subject, now)
}
