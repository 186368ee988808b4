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
	// pageMessages and pageBytes bound one page of a snapshot, for nodes that do not say what they can take.
	pageMessages = 256
	pageBytes    = 512 << 10
	// leastRead is the least that is read from the hub for a page, however small it is to be.
	leastRead = 64 << 10
	// heldBytes and heldMessages are for readers inside the data centre.
	heldBytes    = 4 * mib
	heldMessages = 1000
	// directTimeout bounds one page.
	directTimeout = 3 * time.Second
)

// page is one answer of the reader, in order of sequence.
type page struct {
	messages []wire.SnapshotObject
	// last is the sequence of the last message; the next page starts after it if more is true.
	last uint64
	more bool
	// upTo is the last sequence of the replica that answered: it had seen everything up to there. 0 if nothing matched.
	upTo uint64
}

// directRequest is the JetStream batch form of a direct get (ADR-31), which nats.go has no call for.
type directRequest struct {
	MultiLast []string `json:"multi_last,omitempty"`
	Seq       uint64   `json:"seq,omitempty"`
	Batch     int      `json:"batch,omitempty"`
	MaxBytes  int      `json:"max_bytes,omitempty"`
}

var errTooManySubjects = errors.New("more subjects than one direct get can match")

// reader reads the last message of each subject of a stream, in pages.
type reader struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream string
}

// page returns the last message of each subject that matches, from sequence start on. Any replica of the stream may
// answer, also one that lags: what the caller does next must begin at the page's own upTo.
//
// A direct get costs what the node holds, whatever the size of the stream. Beyond the server's 1,024 subjects a consumer
// reads instead, which scans the stream from start on.
func (r *reader) page(ctx context.Context, filter string, start uint64, messages, bytes int) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, directTimeout)
	defer cancel()
	p, err := r.direct(ctx, []string{filter}, start, messages, bytes)
	if errors.Is(err, errTooManySubjects) {
		p, err = r.scan(ctx, filter, start, messages, bytes)
	}
	if err != nil {
		return page{}, fmt.Errorf("read %s of stream %s: %w", filter, r.stream, err)
	}
	return p, nil
}

func (r *reader) direct(ctx context.Context, filters []string, start uint64, messages, bytes int) (page, error) {
	body, err := json.Marshal(directRequest{MultiLast: filters, Seq: max(start, 1), Batch: messages, MaxBytes: bytes})
	if err != nil {
		return page{}, err
	}
	inbox := r.nc.NewInbox()
	sub, err := r.nc.SubscribeSync(inbox)
	if err != nil {
		return page{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	if err := r.nc.PublishRequest("$JS.API.DIRECT.GET."+r.stream, inbox, body); err != nil {
		return page{}, err
	}
	var p page
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return page{}, err
		}
		done, err := p.add(msg)
		if done || err != nil {
			return p, err
		}
	}
}

// scan reads a page with a consumer that lives for this page only.
func (r *reader) scan(ctx context.Context, filter string, start uint64, messages, bytes int) (page, error) {
	consumer, err := r.js.OrderedConsumer(ctx, r.stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(start, 1),
	})
	if err != nil {
		return page{}, err
	}
	var p page
	if consumer.CachedInfo().NumPending == 0 {
		return p, nil
	}
	incoming, err := consumer.Messages(jetstream.PullMaxMessages(messages))
	if err != nil {
		return page{}, err
	}
	defer incoming.Stop()
	for size := 0; ; {
		msg, err := incoming.Next(jetstream.NextContext(ctx))
		if err != nil {
			return page{}, err
		}
		meta, err := msg.Metadata()
		if err != nil {
			return page{}, err
		}
		p.messages = append(p.messages, snapshotObject(msg.Subject(), meta.Sequence.Stream, msg.Headers(), msg.Data()))
		p.last, p.upTo, p.more = meta.Sequence.Stream, meta.Sequence.Stream, meta.NumPending > 0
		size += len(msg.Data())
		if !p.more || len(p.messages) >= messages || size >= bytes {
			return p, nil
		}
	}
}

// snapshotObject keeps the envelope and drops what the server added.
func snapshotObject(subject string, sequence uint64, header nats.Header, data []byte) wire.SnapshotObject {
	object := wire.SnapshotObject{Subject: subject, Sequence: sequence, Header: make(map[string][]string, len(header)), Data: data}
	for name, values := range header {
		if !strings.HasPrefix(name, "Nats-") {
			object.Header[name] = values
		}
	}
	return object
}

// add takes one message of the answer and tells whether it was the last.
func (p *page) add(msg *nats.Msg) (done bool, err error) {
	switch status := msg.Header.Get("Status"); status {
	case "":
	case "204":
		pending, err := number(msg.Header, "Nats-Num-Pending")
		if err != nil {
			return false, err
		}
		p.more = pending > 0
		p.upTo, err = number(msg.Header, "Nats-UpTo-Sequence")
		return true, err
	case "404":
		if description := msg.Header.Get("Description"); description != "No Results" {
			return false, fmt.Errorf("status %s %s", status, description) // it could not read what it has
		}
		return true, nil
	case "413":
		return false, errTooManySubjects
	default:
		return false, fmt.Errorf("status %s %s", status, msg.Header.Get("Description"))
	}
	sequence, err := number(msg.Header, "Nats-Sequence")
	if err != nil {
		return false, err
	}
	p.messages = append(p.messages, snapshotObject(msg.Header.Get("Nats-Subject"), sequence, msg.Header, msg.Data))
	p.last = sequence
	return false, nil
}

func number(h nats.Header, name string) (uint64, error) {
	n, err := strconv.ParseUint(h.Get(name), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("header %s: %w", name, err)
	}
	return n, nil
}
