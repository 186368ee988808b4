package streams

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/crash"
)

const (
	// leastPart bounds the number of parts of a payload.
	leastPart = leastTake / 2
	// lackingAttempts is how often a report is offered whose parts are not found, about 3 minutes, before it is given up: by then
	// no server lags behind any more.
	lackingAttempts = 12
	// joinAgain is the pause before parts are looked for once more that were stored just now.
	joinAgain = 100 * time.Millisecond
	// headerParts is on a report whose payload was sent in parts before it: their id. Its headerSize says how long that is.
	headerParts = "Frond-Parts"
	// partDigest is how many hex digits of the payload's SHA-256 are in an id.
	partDigest = 32
)

var partID = regexp.MustCompile(`^[0-9]{1,20}-[0-9a-f]{32}$`)

// errLacking says that the hub does not hold all parts of a payload, or that one of its servers does not know of them yet.
var errLacking = errors.New("parts of the payload are lacking")

// partSubject is where a part of a node's payload lies in the hub. No node may publish or read there.
func partSubject(node, id, offset string) string {
	return partPrefix + wire.Escape(node) + "." + id + "." + offset
}

// idOfParts names a payload that has a place in the outbox.
func idOfParts(order string, payload []byte) string {
	sum := sha256.Sum256(payload)
	return order + "-" + hex.EncodeToString(sum[:])[:partDigest]
}

// Parts takes the payloads of large reports in parts, keeps them until the report itself comes, and puts them together. Any
// cloudcore takes any part, and any puts them together.
type Parts struct {
	js  jetstream.JetStream
	log *zap.Logger
}

// NewParts makes a Parts over a connection to the hub.
func NewParts(nc *nats.Conn, log *zap.Logger) (*Parts, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("parts: %w", err)
	}
	return &Parts{js: js, log: log}, nil
}

// Handle is the CallHandler of VerbPart.
func (p *Parts) Handle(ctx context.Context, node string, request []byte) (any, error) {
	req, data, err := readPart(request)
	if err != nil {
		return nil, err
	}
	sctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if _, err := p.js.Publish(sctx, partSubject(node, req.ID, strconv.Itoa(req.Offset)), data); err != nil {
		return nil, fmt.Errorf("part of %s: %w", req.ID, err)
	}
	crash.At("part.stored")
	if req.Offset+len(data) < req.Size {
		return wire.PartReply{}, nil
	}
	for lacking := false; ; lacking = true {
		_, err := p.join(sctx, node, req.ID, req.Size)
		switch {
		case err == nil:
			return wire.PartReply{}, nil
		case lacking && sctx.Err() != nil:
			return wire.PartReply{Lacking: true}, nil
		case !errors.Is(err, errLacking):
			return nil, fmt.Errorf("payload %s: %w", req.ID, err)
		}
		select {
		case <-time.After(joinAgain): // the one that answered may lag behind
		case <-sctx.Done():
			return wire.PartReply{Lacking: true}, nil
		}
	}
}

// readPart refuses what no pump sends.
func readPart(request []byte) (req wire.PartRequest, data []byte, err error) {
	line, data, _ := bytes.Cut(request, []byte("\n"))
	if err := DecodeRequest(line, &req); err != nil {
		return req, nil, err
	}
	end := req.Offset + len(data)
	switch {
	case !partID.MatchString(req.ID):
		return req, nil, permanent("%.80q names no payload", req.ID)
	case req.Size <= 0 || req.Size > maxMessage || req.Offset < 0 || req.Offset > req.Size || end > req.Size:
		return req, nil, permanent("%d bytes at %d of %d are no part", len(data), req.Offset, req.Size)
	case len(data) == 0 || len(data) < leastPart && end != req.Size:
		return req, nil, permanent("a part of %d bytes, at least %d", len(data), leastPart)
	}
	return req, data, nil
}

// join puts a payload together. An earlier attempt with parts of other sizes may have left some that are passed over.
func (p *Parts) join(ctx context.Context, node, id string, size int) ([]byte, error) {
	stream, err := p.js.Stream(ctx, PartStream)
	if err != nil {
		return nil, err
	}
	payload := make([]byte, 0, size)
	for len(payload) < size {
		part, err := stream.GetLastMsgForSubject(ctx, partSubject(node, id, strconv.Itoa(len(payload))))
		switch {
		case errNotFound(err), err == nil && len(part.Data) == 0:
			return nil, fmt.Errorf("%w: at %d of %d", errLacking, len(payload), size)
		case err != nil:
			return nil, err
		}
		payload = append(payload, part.Data...)
	}
	order, _, _ := bytes.Cut([]byte(id), []byte("-"))
	if len(payload) != size || idOfParts(string(order), payload) != id {
		return nil, fmt.Errorf("%w: what is there is another payload", errLacking)
	}
	return payload, nil
}

// payloadOf returns the payload of a report, however it came.
func (p *Parts) payloadOf(ctx context.Context, msg jetstream.Msg) (payload []byte, err error) {
	id := msg.Headers().Get(headerParts)
	if id == "" {
		return msg.Data(), nil
	}
	_, node, _, err := ParseSubject(msg.Subject())
	if err != nil {
		return nil, permanent("%v", err)
	}
	size, err := strconv.Atoi(msg.Headers().Get(headerSize))
	if err != nil || size <= 0 || size > maxMessage || !partID.MatchString(id) {
		return nil, permanent("%.80q of %.20q bytes names no payload", id, msg.Headers().Get(headerSize))
	}
	jctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if payload, err = p.join(jctx, node, id, size); err != nil {
		return nil, err
	}
	crash.At("part.joined")
	return payload, nil
}

// forget removes the parts of a report that is settled; what it cannot remove goes with its age.
func (p *Parts) forget(ctx context.Context, msg jetstream.Msg) {
	id := msg.Headers().Get(headerParts)
	_, node, _, err := ParseSubject(msg.Subject())
	if id == "" || err != nil || !partID.MatchString(id) {
		return
	}
	crash.At("part.settled")
	stream, err := p.js.Stream(ctx, PartStream)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(partSubject(node, id, allNodes)))
	}
	if err != nil {
		p.log.Info("parts of a settled report left to expire", zap.String("subject", msg.Subject()), zap.Error(err))
	}
}
