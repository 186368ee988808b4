package streams

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
)

const (
	// pageMessages and pageBytes bound one page of a snapshot, for nodes that do not state their budget.
	pageMessages = 256
	pageBytes    = 512 << 10
	// minPageRead is the least number of bytes read from the hub for a page, however small the page is to be.
	minPageRead = 64 << 10
	// inventoryPageBytes and inventoryPageMessages are for readers inside the data centre.
	inventoryPageBytes    = 4 * mib
	inventoryPageMessages = 1000
	// directGetTimeout bounds one page.
	directGetTimeout = 3 * time.Second
)

// snapshotPage is one answer of the reader, in order of sequence.
type snapshotPage struct {
	messages []wire.SnapshotObject
	// lastSequence is the sequence of the last message; the next page starts after it if more is true.
	lastSequence uint64
	more         bool
	// upTo is the last sequence of the replica that answered; the replica had seen everything up to it. 0 if nothing matched.
	upTo uint64
}

// directGetRequest is the JetStream batch form of a direct get (ADR-31), for which nats.go has no call.
type directGetRequest struct {
	MultiLast []string `json:"multi_last,omitempty"`
	Seq       uint64   `json:"seq,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
}

var errTooManySubjects = errors.New("more subjects than one direct get can match")

// streamReader reads the last message of each subject of a stream, in pages.
type streamReader struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream string
}

// readPage returns the last message of each matching subject, from sequence start on. Any replica of the stream may answer, also one that
// lags: the caller must continue at the page's own upTo.
//
// The cost of a direct get depends on the number of the node's objects, not on the size of the stream. Beyond the server's 1,024 subjects
// a consumer reads instead, which scans the stream from start on.
func (r *streamReader) readPage(ctx context.Context, filter string, start uint64, messages, bytes int) (snapshotPage, error) {
	ctx, cancel := context.WithTimeout(ctx, directGetTimeout)
	defer cancel()
	p, err := r.readDirect(ctx, []string{filter}, start, messages, bytes)
	if errors.Is(err, errTooManySubjects) {
		p, err = r.readByConsumer(ctx, filter, start, messages, bytes)
	}
	if err != nil {
		return snapshotPage{}, fmt.Errorf("read %s of stream %s: %w", filter, r.stream, err)
	}
	return p, nil
}

func (r *streamReader) readDirect(ctx context.Context, filters []string, start uint64, messages, bytes int) (snapshotPage, error) {
	body, err := json.Marshal(directGetRequest{MultiLast: filters, Seq: max(start, 1), Batch: messages, MaxBytes: bytes})
	if err != nil {
		return snapshotPage{}, err
	}
	inbox := r.nc.NewInbox()
	sub, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		return snapshotPage{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := r.nc.PublishRequest("$JS.API.DIRECT.GET."+r.stream, inbox, body); err != nil {
		return snapshotPage{}, err
	}
	var p snapshotPage
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return snapshotPage{}, err
		}
		done, err := p.addMessage(msg)
		if done || err != nil {
			return p, err
		}
	}
}

// readByConsumer reads a page with a consumer that exists for this page only.
func (r *streamReader) readByConsumer(ctx context.Context, filter string, start uint64, messages, bytes int) (snapshotPage, error) {
	consumer, err := r.js.OrderedConsumer(ctx, r.stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1),
	})
	if err != nil {
		return snapshotPage{}, err
	}
	var p snapshotPage
	if consumer.CachedInfo().NumPending == 0 {
		return p, nil
	}
	incoming, err := consumer.Messages(jetstream.PullMaxMessages(messages))
	if err != nil {
		return snapshotPage{}, err
	}
	defer incoming.Stop()
	for size := 0; ; {
		msg, err := incoming.Next(jetstream.NextContext(ctx))
		if err != nil {
			return snapshotPage{}, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return snapshotPage{}, err
		}
		p.messages = append(p.messages, snapshotObject(msg.Subject(), meta.Sequence.Stream, msg.Headers(), msg.Data()))
		p.lastSequence, p.upTo, p.more = meta.Sequence.Stream, meta.Sequence.Stream, meta.NumPending > 0
		size += len(msg.Data())
		if !p.more || len(p.messages) >= messages || size >= bytes {
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

// addMessage adds one message of the answer and reports whether it was the last.
func (p *snapshotPage) addMessage(msg *nats.Msg) (done bool, err error) {
	switch status := msg.Header.Get("Status"); status {
	case "":
	case "204":
		pending, err := parseHeaderNumber(msg.Header, "Nats-Num-Pending")
		if err != nil {
			return false, err
		}
		p.more = pending > 0
		p.upTo, err = parseHeaderNumber(msg.Header, "Nats-UpTo-Sequence")
		return true, err
	case "404":
		if description := msg.Header.Get("Description"); description != "No Results" {
			return false, fmt.Errorf("status %s %s", status, description) // the server could not read its stored message
		}
		return true, nil
	case "413":
		return false, errTooManySubjects
	default:
		return false, fmt.Errorf("status %s %s", status, msg.Header.Get("Description"))
	}
	sequence, err := parseHeaderNumber(msg.Header, "Nats-Sequence")
	if err != nil {
		return false, err
	}
	p.messages = append(p.messages, snapshotObject(msg.Header.Get("Nats-Subject"), sequence, msg.Header, msg.Data))
	p.lastSequence = sequence
	return false, nil
}

func parseHeaderNumber(h nats.Header, name string) (uint64, error) {
	n, err := strconv.ParseUint(h.Get(name), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("header %s: %w", name, err)
	}
	return n, nil
}
