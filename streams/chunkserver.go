package streams

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/crash"
)

const (
	// maxPiece bounds one piece, whatever is asked for.
	maxPiece = mib
	// keptPayloads and keptFor are the payloads that a cloudcore remembers between two pieces: 16 of up to 4 MiB. With more large
	// objects on their way at once it reads some again for each piece.
	keptPayloads = 16
	keptFor      = time.Minute
	// headerSize and headerGone are on the answer to a request for a piece: how long the whole payload is, and that the stream
	// holds the message no more.
	headerSize = "Frond-Size"
	headerGone = "Frond-Gone"
)

// fit shortens a page to what a node can take at a time: about so many bytes on the link, without the payloads that are
// larger by themselves. The first message stays in any case.
func (p page) fit(take int) page {
	size := 0
	for i := range p.messages {
		m := &p.messages[i]
		if len(m.Data) > take {
			m.Size, m.Data = len(m.Data), nil
		}
		size += onLink(*m)
		if i > 0 && size > take {
			p.messages, p.last, p.more = p.messages[:i], p.messages[i-1].Sequence, true
			break
		}
	}
	return p
}

// onLink is about how long a message is as JSON.
func onLink(m wire.SnapshotObject) int {
	size := len(m.Subject) + len(m.Data)*4/3 + 32 //nolint:mnd // base64, and the names of the fields
	for name, values := range m.Header {
		size += len(name)
		for _, value := range values {
			size += len(value)
		}
	}
	return size
}

// lacks tells whether a payload was left out of the page.
func (p page) lacks() bool {
	for _, m := range p.messages {
		if m.Size > 0 {
			return true
		}
	}
	return false
}

// Pieces gives nodes, in parts, the payloads that are too large to be sent to them in one. Any cloudcore answers for any part.
type Pieces struct {
	js     jetstream.JetStream
	reader *reader
	kept   *cache.LRUExpireCache
	log    *zap.Logger
}

// NewPieces makes a Pieces over a connection to the hub.
func NewPieces(nc *nats.Conn, log *zap.Logger) (*Pieces, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("pieces: %w", err)
	}
	return &Pieces{
		js: js, reader: &reader{nc: nc, js: js, stream: DesiredStream}, kept: cache.NewLRUExpireCache(keptPayloads), log: log,
	}, nil
}

// Handle is the CallHandler of VerbPiece. A node gets parts of its own messages only.
func (p *Pieces) Handle(ctx context.Context, node string, request []byte) (any, error) {
	req, err := readPieceRequest(node, request)
	if err != nil {
		return nil, err
	}
	payload, gone, err := p.payload(ctx, req)
	switch {
	case err != nil:
		return nil, fmt.Errorf("piece of %s: %w", req.Subject, err)
	case gone:
		return rawReply{header: nats.Header{headerGone: {"true"}}}, nil
	case req.Offset >= len(payload):
		return nil, permanent("a piece at %d of a payload of %d bytes", req.Offset, len(payload))
	}
	crash.At("piece.read")
	end := req.Offset + min(req.Length, maxPiece, len(payload)-req.Offset)
	return rawReply{header: nats.Header{headerSize: {strconv.Itoa(len(payload))}}, data: payload[req.Offset:end]}, nil
}

// readPieceRequest refuses garbage, and what is not the asker's.
func readPieceRequest(node string, request []byte) (wire.PieceRequest, error) {
	var req wire.PieceRequest
	if err := DecodeRequest(request, &req); err != nil {
		return req, err
	}
	plane, of, _, err := ParseSubject(req.Subject)
	switch {
	case err != nil:
		return req, permanent("%v", err)
	case plane != Desired || of != node:
		return req, permanent("%.120q is not a message for this node", req.Subject)
	case req.Offset < 0 || req.Length <= 0 || req.Sequence == 0:
		return req, permanent("%d bytes at %d of message %d are no piece", req.Length, req.Offset, req.Sequence)
	}
	return req, nil
}

// stored names one message for ever.
type stored struct {
	epoch, subject string
	sequence       uint64
}

// payload returns what a message holds. gone says that the stream's leader holds another one of that subject, or none, so
// that the node will be told of a newer one or a new life of the stream.
func (p *Pieces) payload(ctx context.Context, req wire.PieceRequest) (payload []byte, gone bool, err error) {
	id := stored{req.StreamEpoch, req.Subject, req.Sequence}
	if kept, ok := p.kept.Get(id); ok {
		return kept.([]byte), false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	stream, err := p.js.Stream(ctx, DesiredStream)
	if err != nil {
		return nil, false, err
	}
	if info := stream.CachedInfo(); streamEpoch(info) != req.StreamEpoch {
		return nil, true, nil
	} else if info.State.LastSeq < req.Sequence {
		return nil, false, fmt.Errorf("sequence %d is not seen: %w", req.Sequence, errLagging)
	}
	object, err := p.reader.lastOf(ctx, req.Subject)
	switch {
	case errNotFound(err):
		return nil, true, nil
	case err != nil:
		return nil, false, err
	case object.Sequence < req.Sequence:
		return nil, false, fmt.Errorf("sequence %d is not seen: %w", req.Sequence, errLagging)
	case object.Sequence > req.Sequence:
		return nil, true, nil
	}
	p.kept.Add(id, object.Data, keptFor)
	return object.Data, false, nil
}
