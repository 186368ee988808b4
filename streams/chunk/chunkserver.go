// Package chunk is the cloud's side of payloads that are too large for a link to take at a time: Server answers requests for pieces of a
// desired object, Store assembles the parts of a report.
package chunk

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
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/read"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// maxPieceBytes bounds one piece, whatever size is requested.
	maxPieceBytes = topology.MiB
	// cachedPayloads and payloadCacheTTL bound the payloads that a cloudcore caches between two pieces: 16 of up to 4 MiB. If more large
	// objects are being fetched at once, it reads some of them again for each piece.
	cachedPayloads  = 16
	payloadCacheTTL = time.Minute
)

// Server serves nodes, in pieces, the payloads that are too large for one message. Any cloudcore answers for any piece.
type Server struct {
	js           jetstream.JetStream
	nc           *nats.Conn
	layout       subject.Layout
	payloadCache *cache.LRUExpireCache
	log          *zap.Logger
}

// NewServer returns a Server over a connection to a hub with the given layout.
func NewServer(nc *nats.Conn, layout subject.Layout, log *zap.Logger) (*Server, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("pieces: %w", err)
	}
	return &Server{
		js: js, nc: nc, layout: layout, payloadCache: cache.NewLRUExpireCache(cachedPayloads), log: log,
	}, nil
}

// Handle is the CallHandler of VerbPiece. A node gets pieces of its own messages only.
func (p *Server) Handle(ctx context.Context, node string, request []byte) (any, error) {
	req, err := parsePieceRequest(node, request)
	if err != nil {
		return nil, err
	}
	payload, gone, err := p.loadPayload(ctx, node, req)
	switch {
	case err != nil:
		return nil, fmt.Errorf("piece of %s: %w", req.Subject, err)
	case gone:
		return call.RawReply{Header: nats.Header{envelope.HeaderGone: {"true"}}}, nil
	case req.Offset >= len(payload):
		return nil, envelope.PermanentErrorf("a piece at %d of a payload of %d bytes", req.Offset, len(payload))
	}
	failpoint.At("piece.read")
	end := req.Offset + min(req.Length, maxPieceBytes, len(payload)-req.Offset)
	return call.RawReply{Header: nats.Header{envelope.HeaderSize: {strconv.Itoa(len(payload))}}, Data: payload[req.Offset:end]}, nil
}

// parsePieceRequest refuses malformed requests and requests for another node's messages.
func parsePieceRequest(node string, request []byte) (wire.PieceRequest, error) {
	var req wire.PieceRequest
	if err := call.DecodeRequest(request, &req); err != nil {
		return req, err
	}
	plane, of, _, err := subject.Parse(req.Subject)
	switch {
	case err != nil:
		return req, envelope.PermanentErrorf("%v", err)
	case plane != subject.Desired || of != node:
		return req, envelope.PermanentErrorf("%.120q is not a message for this node", req.Subject)
	case req.Offset < 0 || req.Length <= 0 || req.Sequence == 0:
		return req, envelope.PermanentErrorf("%d bytes at %d of message %d are no piece", req.Length, req.Offset, req.Sequence)
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
func (p *Server) loadPayload(ctx context.Context, node string, req wire.PieceRequest) (payload []byte, gone bool, err error) {
	id := payloadKey{req.StreamEpoch, req.Subject, req.Sequence}
	if kept, ok := p.payloadCache.Get(id); ok {
		return kept.([]byte), false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, topology.StepTimeout)
	defer cancel()
	reader := &read.StreamReader{Nc: p.nc, Js: p.js, Stream: p.layout.DesiredStream(node)}
	stream, err := p.js.Stream(ctx, reader.Stream)
	if err != nil {
		return nil, false, err
	}
	if info := stream.CachedInfo(); topology.StreamEpoch(info) != req.StreamEpoch {
		return nil, true, nil
	} else if info.State.LastSeq < req.Sequence {
		return nil, false, fmt.Errorf("sequence %d is not seen: %w", req.Sequence, read.ErrReplicaLags)
	}
	object, err := reader.ReadLastOf(ctx, req.Subject)
	switch {
	case topology.IsNotFound(err):
		return nil, true, nil
	case err != nil:
		return nil, false, err
	case object.Sequence < req.Sequence:
		return nil, false, fmt.Errorf("sequence %d is not seen: %w", req.Sequence, read.ErrReplicaLags)
	case object.Sequence > req.Sequence:
		return nil, true, nil
	}
	p.payloadCache.Add(id, object.Data, payloadCacheTTL)
	return object.Data, false, nil
}
