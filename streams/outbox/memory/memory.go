// Package memory is the outbox of a simulated gateway: outbox.Outbox without a disk, for frond loadtest. Of several waiting reports of one
// object it keeps the last; a report stays until the hub has acked it, over any number of links, but not over a restart of the process.
package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/subject"
)

// Codec encodes reports; any number of outboxes may share one.
type Codec struct{ codec *envelope.Codec }

// NewCodec returns a codec.
func NewCodec() (*Codec, error) {
	codec, err := envelope.NewCodec()
	if err != nil {
		return nil, err
	}
	return &Codec{codec}, nil
}

// Outbox holds the reports of one node. It implements outbox.Source.
type Outbox struct {
	node, storeEpoch string
	codec            *Codec

	mu      sync.Mutex // guards all fields below
	waiting []*report  // oldest first
	last    uint64     // the newest sequence
	// arrived closes when a report is stored.
	arrived chan struct{}
}

// report is a waiting report; it is not changed.
type report struct {
	box      *Outbox
	msg      *nats.Msg
	sequence uint64
	stored   time.Time
}

// New returns the empty outbox of a node.
func New(node, storeEpoch string, codec *Codec) *Outbox {
	return &Outbox{node: node, storeEpoch: storeEpoch, codec: codec, arrived: make(chan struct{})}
}

// Report stores a report in the place of an older one of its object.
func (o *Outbox) Report(m wire.Message) error {
	m.Node, m.StoreEpoch = o.node, o.storeEpoch
	if m.Time.IsZero() {
		m.Time = time.Now()
	}
	msg, err := o.codec.codec.Encode(subject.OutboxSubject(subject.Report, o.node, m.Key), m)
	if err != nil {
		return fmt.Errorf("outbox: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = slices.DeleteFunc(o.waiting, func(r *report) bool { return r.msg.Subject == msg.Subject })
	o.last++
	o.waiting = append(o.waiting, &report{box: o, msg: msg, sequence: o.last, stored: time.Now()})
	close(o.arrived)
	o.arrived = make(chan struct{})
	return nil
}

// Depth implements outbox.Source.
func (o *Outbox) Depth(context.Context) (messages uint64, oldest time.Duration, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waiting) > 0 {
		oldest = time.Since(o.waiting[0].stored)
	}
	return uint64(len(o.waiting)), oldest, nil
}

// Open implements outbox.Source.
func (o *Outbox) Open(context.Context) (outbox.Reader, error) { return &reader{box: o}, nil }

// reader reads an outbox. after is the sequence of the last report that it has read.
type reader struct {
	box   *Outbox
	after uint64
}

// Next implements outbox.Reader.
func (r *reader) Next(ctx context.Context) (outbox.Report, error) {
	for {
		next, arrived := r.box.firstAfter(r.after)
		if next != nil {
			r.after = next.sequence
			return next, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-arrived:
		}
	}
}

// Drain implements outbox.Reader: nothing is read ahead.
func (r *reader) Drain() []outbox.Report { return nil }

func (o *Outbox) firstAfter(sequence uint64) (next *report, arrived <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.waiting {
		if r.sequence > sequence {
			return r, nil
		}
	}
	return nil, o.arrived
}

// Metadata implements outbox.Report.
func (r *report) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{Sequence: jetstream.SequencePair{Stream: r.sequence, Consumer: r.sequence}}, nil
}

// Subject implements outbox.Report.
func (r *report) Subject() string { return r.msg.Subject }

// Headers implements outbox.Report.
func (r *report) Headers() nats.Header { return r.msg.Header }

// Data implements outbox.Report.
func (r *report) Data() []byte { return r.msg.Data }

// Ack implements outbox.Report.
func (r *report) Ack() error {
	r.box.mu.Lock()
	defer r.box.mu.Unlock()
	r.box.waiting = slices.DeleteFunc(r.box.waiting, func(w *report) bool { return w == r })
	return nil
}

// Nak implements outbox.Report: the next reader begins at the oldest.
func (r *report) Nak() error { return nil }

// InProgress implements outbox.Report.
func (r *report) InProgress() error { return nil }
