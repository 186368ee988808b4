// Package read reads the hub's streams without a lasting consumer, in pages, and no older than a given sequence although the server that
// answers may lag behind the leader.
package read

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// PageMessages and PageBytes bound one page of a snapshot, for nodes that do not state their budget.
	PageMessages = 256
	// PageBytes is PageMessages for the bytes of a page.
	PageBytes = 512 << 10
	// MinPageRead is the least number of bytes read from the hub for a page, however small the page is to be.
	MinPageRead = 64 << 10
	// InventoryPageBytes and InventoryPageMessages are for readers inside the data centre.
	InventoryPageBytes = 4 * topology.MiB
	// InventoryPageMessages is InventoryPageBytes for messages.
	InventoryPageMessages = 1000
	// DirectGetTimeout bounds one page.
	DirectGetTimeout = 3 * time.Second
)

// SnapshotPage is one answer of the reader, in order of sequence.
type SnapshotPage struct {
	Messages []wire.SnapshotObject
	// LastSequence is the sequence of the last message; the next page starts after it if more is true.
	LastSequence uint64
	More         bool
	// UpTo is the last sequence of the replica that answered; the replica had seen everything up to it. 0 if nothing matched.
	UpTo uint64
}

// DirectGetRequest is the JetStream batch form of a direct get (ADR-31), for which nats.go has no call.
type DirectGetRequest struct {
	MultiLast []string `json:"multi_last,omitempty"`
	Seq       uint64   `json:"seq,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
}

// ErrTooManySubjects reports that a request has to be made in parts.
var ErrTooManySubjects = errors.New("more subjects than one direct get can match")

// StreamReader reads the last message of each subject of a stream, in pages.
type StreamReader struct {
	Nc     *nats.Conn
	Js     jetstream.JetStream
	Stream string
}

// ReadPage returns the last message of each matching subject, from sequence start on. Any replica of the stream may answer, also one that
// lags: the caller must continue at the page's own upTo.
//
// The cost of a direct get depends on the number of the node's objects, not on the size of the stream. Beyond the server's 1,024 subjects
// a consumer reads instead, which scans the stream from start on.
func (r *StreamReader) ReadPage(ctx context.Context, filter string, start uint64, messages, bytes int) (SnapshotPage, error) {
	ctx, cancel := context.WithTimeout(ctx, DirectGetTimeout)
	defer cancel()
	p, err := r.readDirect(ctx, []string{filter}, start, messages, bytes)
	if errors.Is(err, ErrTooManySubjects) {
		p, err = r.readByConsumer(ctx, filter, start, messages, bytes)
	}
	if err != nil {
		return SnapshotPage{}, fmt.Errorf("read %s of stream %s: %w", filter, r.Stream, err)
	}
	return p, nil
}

func (r *StreamReader) readDirect(ctx context.Context, filters []string, start uint64, messages, bytes int) (SnapshotPage, error) {
	body, err := json.Marshal(DirectGetRequest{MultiLast: filters, Seq: max(start, 1), Batch: messages, MaxBytes: bytes})
	if err != nil {
		return SnapshotPage{}, err
	}
	inbox := r.Nc.NewInbox()
	sub, err := r.Nc.SubscribeSync(inbox)
	if err != nil {
		return SnapshotPage{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := r.Nc.PublishRequest("$JS.API.DIRECT.GET."+r.Stream, inbox, body); err != nil {
		return SnapshotPage{}, err
	}
	var p SnapshotPage
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return SnapshotPage{}, err
		}
		done, err := p.AddMessage(msg)
		if done || err != nil {
			return p, err
		}
	}
}

// readByConsumer reads a page with a consumer that exists for this page only.
func (r *StreamReader) readByConsumer(ctx context.Context, filter string, start uint64, messages, bytes int) (SnapshotPage, error) {
	consumer, err := r.Js.OrderedConsumer(ctx, r.Stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1),
	})
	if err != nil {
		return SnapshotPage{}, err
	}
	var p SnapshotPage
	if consumer.CachedInfo().NumPending == 0 {
		return p, nil
	}
	incoming, err := consumer.Messages(jetstream.PullMaxMessages(messages))
	if err != nil {
		return SnapshotPage{}, err
	}
	defer incoming.Stop()
	for size := 0; ; {
		msg, err := incoming.Next(jetstream.NextContext(ctx))
		if err != nil {
			return SnapshotPage{}, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return SnapshotPage{}, err
		}
		p.Messages = append(p.Messages, snapshotObject(msg.Subject(), meta.Sequence.Stream, msg.Headers(), msg.Data()))
		p.LastSequence, p.UpTo, p.More = meta.Sequence.Stream, meta.Sequence.Stream, meta.NumPending > 0
		size += len(msg.Data())
		if !p.More || len(p.Messages) >= messages || size >= bytes {
			return p, nil
		}
	}
}

// snapshotObject keeps the envelope and drops the server's additions.
func snapshotObject(subject string, sequence uint64, header nats.Header, data []byte) wire.SnapshotObject {
	object := wire.SnapshotObject{Subject: subject, Sequence: sequence, Header: make(map[string][]string, len(header)), Data: data}
	for name, values := range header {
		if !strings.HasPrefix(name, "Nats-") {
			object.Header[name] = values
		}
	}
	return object
}

// AddMessage adds one message of the answer and reports whether it was the last.
func (p *SnapshotPage) AddMessage(msg *nats.Msg) (done bool, err error) {
	switch status := msg.Header.Get("Status"); status {
	case "":
	case "204":
		pending, err := ParseHeaderNumber(msg.Header, "Nats-Num-Pending")
		if err != nil {
			return false, err
		}
		p.More = pending > 0
		p.UpTo, err = ParseHeaderNumber(msg.Header, "Nats-UpTo-Sequence")
		return true, err
	case "404":
		if description := msg.Header.Get("Description"); description != "No Results" {
			return false, fmt.Errorf("status %s %s", status, description) // the server could not read its stored message
		}
		return true, nil
	case "413":
		return false, ErrTooManySubjects
	default:
		return false, fmt.Errorf("status %s %s", status, msg.Header.Get("Description"))
	}
	sequence, err := ParseHeaderNumber(msg.Header, "Nats-Sequence")
	if err != nil {
		return false, err
	}
	p.Messages = append(p.Messages, snapshotObject(msg.Header.Get("Nats-Subject"), sequence, msg.Header, msg.Data))
	p.LastSequence = sequence
	return false, nil
}

// ParseHeaderNumber returns the number in a header.
func ParseHeaderNumber(h nats.Header, name string) (uint64, error) {
	n, err := strconv.ParseUint(h.Get(name), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("header %s: %w", name, err)
	}
	return n, nil
}
