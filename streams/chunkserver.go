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
	"github.com/frond-edge/frond/internal/failpoint"
)

const (
	// maxPieceBytes bounds one piece, whatever size is requested.
	maxPieceBytes = mib
	// cachedPayloads and payloadCacheTTL bound the payloads that a cloudcore caches between two pieces: 16 of up to 4 MiB. If more large
	// objects are being fetched at once, it reads some of them again for each piece.
	cachedPayloads  = 16
	payloadCacheTTL = time.Minute
	// headerSize and headerGone are headers of the reply to a request for a piece: the size of the whole payload, and that the stream no
	// longer holds the message.
	headerSize = "Frond-Size"
	headerGone = "Frond-Gone"
)

// truncateToFit shortens a page to the budget of a node: about so many bytes on the link, without the payloads that alone are larger. The
// first message always stays.
func (p snapshotPage) truncateToFit(take int) snapshotPage {
	size := 0
	for i := range p.messages {
		m := &p.messages[i]
		if len(m.Data) > take {
			m.Size, m.Data = len(m.Data), nil
		}
		size += estimateLinkBytes(*m)
		if i > 0 && size > take {
			p.messages, p.lastSequence, p.more = p.messages[:i], p.messages[i-1].Sequence, true
			break
		}
	}
	return p
}

// estimateLinkBytes estimates the size of a message as JSON.
func estimateLinkBytes(m wire.SnapshotObject) int {
	size := len(m.Subject) + len(m.Data)*4/3 + 32 //nolint:mnd // base64, and the names of the fields
	for name, values := range m.Header {
		size += len(name)
		for _, value := range values {
			size += len(value)
		}
	}
	return size
}

// omitsPayload reports whether a payload was left out of the page.
func (p snapshotPage) omitsPayload() bool {
	for _, m := range p.messages {
		if m.Size > 0 {
			return true
		}
	}
	return false
}

// ChunkServer serves nodes, in pieces, the payloads that are too large for one message. Any cloudcore answers for any piece.
type ChunkServer struct {
	js           jetstream.JetStream
	reader       *streamReader
	payloadCache *cache.LRUExpireCache
	log          *zap.Logger
}

// NewChunkServer returns a ChunkServer over a connection to the hub.
func NewChunkServer(nc *nats.Conn, log *zap.Logger) (*ChunkServer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("pieces: %w", err)
	}
	return &ChunkServer{
		js: js, reader: &streamReader{nc: nc, js: js, stream: DesiredStream}, payloadCache: cache.NewLRUExpireCache(cachedPayloads), log: log,
	}, nil
}

// Handle is the CallHandler of VerbPiece. A node gets pieces of its own messages only.
func (p *ChunkServer) Handle(ctx context.Context, node string, request []byte) (any, error) {
	req, err := parsePieceRequest(node, request)
	if err != nil {
		return nil, err
	}
	payload, gone, err := p.loadPayload(ctx, req)
	switch {
	case err != nil:
		return nil, fmt.Errorf("piece of %s: %w", req.Subject, err)
	case gone:
		return rawReply{header: nats.Header{headerGone: {"true"}}}, nil
	case req.Offset >= len(payload):
		return nil, permanentErrorf("a piece at %d of a payload of %d bytes", req.Offset, len(payload))
	}
	failpoint.At("piece.read")
	end := req.Offset + min(req.Length, maxPieceBytes, len(payload)-req.Offset)
	return rawReply{header: nats.Header{headerSize: {strconv.Itoa(len(payload))}}, data: payload[req.Offset:end]}, nil
}

// parsePieceRequest refuses malformed requests and requests for another node's messages.
func parsePieceRequest(node string, request []byte) (wire.PieceRequest, error) {
	var req wire.PieceRequest
	if err := DecodeRequest(request, &req); err != nil {
		return req, err
	}
	plane, of, _, err := ParseSubject(req.Subject)
	switch {
	case err != nil:
		return req, permanentErrorf("%v", err)
	case plane != Desired || of != node:
		return req, permanentErrorf("%.120q is not a message for this node", req.Subject)
	case req.Offset < 0 || req.Length <= 0 || req.Sequence == 0:
		return req, permanentErrorf("%d bytes at %d of message %d are no piece", req.Length, req.Offset, req.Sequence)
	}
	return req, nil
}

// payloadKey identifies one message permanently.
type payloadKey struct {
	epoch, subject string
	sequence       uint64
}

// loadPayload returns the payload of a message. gone reports that the stream's leader holds another message of that subject, or none; the
// node will then receive a newer message or learn of a new life of the stream.
func (p *ChunkServer) loadPayload(ctx context.Context, req wire.PieceRequest) (payload []byte, gone bool, err error) {
	id := payloadKey{req.StreamEpoch, req.Subject, req.Sequence}
	if kept, ok := p.payloadCache.Get(id); ok {
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
		return nil, false, fmt.Errorf("sequence %d is not seen: %w", req.Sequence, errReplicaLags)
	}
	object, err := p.reader.readLastOf(ctx, req.Subject)
	switch {
	case isNotFound(err):
		return nil, true, nil
	case err != nil:
		return nil, false, err
	case object.Sequence < req.Sequence:
		return nil, false, fmt.Errorf("sequence %d is not seen: %w", req.Sequence, errReplicaLags)
	case object.Sequence > req.Sequence:
		return nil, true, nil
	}
	p.payloadCache.Add(id, object.Data, payloadCacheTTL)
	return object.Data, false, nil
}
