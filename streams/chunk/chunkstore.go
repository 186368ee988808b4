package chunk

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/internal/read"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// MinPartBytes bounds the number of parts of a payload.
	MinPartBytes = flow.MinLinkBudget / 2
	// IncompleteAttempts is how often a report with missing parts is delivered before it is given up, which takes about 3 minutes: by then
	// no server lags behind any more.
	IncompleteAttempts = 12
	// assembleRetryDelay is the pause before the single second attempt to find parts that were stored just now.
	assembleRetryDelay = 500 * time.Millisecond
	// assembleTimeout bounds the assembly of a payload: together with storing the last part it ends before the timeout of a pump.
	assembleTimeout = topology.PumpTimeout - topology.StepTimeout
	// assembleSurplus bounds the bytes read for a payload, as a multiple of its size: attempts with parts of other sizes leave some
	// behind.
	assembleSurplus = 4
	// maxPartBytesPerNode limits the bytes of one node's parts in the hub to eight of the largest payloads. A cloudcore checks the quota
	// each time it has taken quotaCheckBytes of a node. So one node cannot push out the parts of others.
	maxPartBytesPerNode = 32 * topology.MiB
	quotaCheckBytes     = maxPartBytesPerNode / 8

	// partDigestLength is the number of hex digits of the payload's SHA-256 in an id.
	partDigestLength = 32
)

var partIDPattern = regexp.MustCompile(`^[0-9]{1,20}-[0-9a-f]{32}$`)

// ErrIncomplete reports that the hub does not hold all parts of a payload, or that one of its servers has not received them yet.
var ErrIncomplete = errors.New("parts of the payload are lacking")

// partSubject is the subject of a part of a node's payload in the hub. No node may publish or read there.
func partSubject(node, id string, offset, length int) string {
	return partFilter(node, id) + strconv.Itoa(offset) + "." + strconv.Itoa(length)
}

// partFilter is the common prefix of the subjects of all parts of a payload.
func partFilter(node, id string) string {
	return subject.PartPrefix + wire.Escape(node) + "." + id + "."
}

// parsePartSubject parses the last token of a part's subject.
func parsePartSubject(subj string) (offset, length int, ok bool) {
	tokens := strings.Split(subj, ".")
	if len(tokens) != 5 {
		return 0, 0, false
	}
	offset, err := strconv.Atoi(tokens[3])
	length, lerr := strconv.Atoi(tokens[4])
	return offset, length, err == nil && lerr == nil && offset >= 0
}

// PayloadID names a payload by its position in the outbox.
func PayloadID(order string, payload []byte) string {
	sum := sha256.Sum256(payload)
	return order + "-" + hex.EncodeToString(sum[:])[:partDigestLength]
}

// Store stores the payloads of large reports in parts, keeps them until the report itself arrives, and assembles them. Any cloudcore
// takes any part, and any of them assembles.
type Store struct {
	js     jetstream.JetStream
	reader *read.StreamReader
	log    *zap.Logger

	mu             sync.Mutex
	uncountedBytes map[string]int // by node: bytes since the last quota check. Guarded by mu.
}

// NewStore returns a Store over a connection to the hub.
func NewStore(nc *nats.Conn, log *zap.Logger) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("parts: %w", err)
	}
	return &Store{js: js, reader: &read.StreamReader{Nc: nc, Js: js, Stream: subject.PartStream}, log: log, uncountedBytes: map[string]int{}}, nil
}

// Handle is the CallHandler of VerbPart.
func (p *Store) Handle(ctx context.Context, node string, request []byte) (any, error) {
	req, data, err := parsePartRequest(request)
	if err != nil {
		return nil, err
	}
	sctx, cancel := context.WithTimeout(ctx, topology.StepTimeout)
	defer cancel()
	if err := p.enforceQuota(sctx, node, len(data)); err != nil {
		return nil, fmt.Errorf("part of %s: %w", req.ID, err)
	}
	ack, err := p.js.Publish(sctx, partSubject(node, req.ID, req.Offset, len(data)), data)
	if err != nil {
		return nil, fmt.Errorf("part of %s: %w", req.ID, err)
	}
	failpoint.At("part.stored")
	if req.Offset+len(data) < req.Size {
		return wire.PartReply{}, nil
	}
	jctx, cancel := context.WithTimeout(ctx, assembleTimeout)
	defer cancel()
	_, upTo, err := p.assemblePayload(jctx, node, req.ID, req.Size)
	if errors.Is(err, ErrIncomplete) && upTo < ack.Sequence {
		select {
		case <-time.After(assembleRetryDelay):
			_, upTo, err = p.assemblePayload(jctx, node, req.ID, req.Size)
		case <-jctx.Done():
		}
	}
	switch {
	case err == nil:
		return wire.PartReply{}, nil
	case !errors.Is(err, ErrIncomplete):
		return nil, fmt.Errorf("payload %s: %w", req.ID, err)
	case upTo < ack.Sequence:
		return nil, fmt.Errorf("payload %s: %w", req.ID, read.ErrReplicaLags) // the last part was sent again
	}
	if err := p.purgeParts(jctx, partFilter(node, req.ID)+">"); err != nil {
		return nil, fmt.Errorf("payload %s: %w", req.ID, err)
	}
	return wire.PartReply{Incomplete: true}, nil
}

// enforceQuota counts a node's parts in the hub from time to time, and removes the older half of them if they exceed the quota: payloads
// whose report never arrived, or whose report is not handled, for which the node is asked again.
func (p *Store) enforceQuota(ctx context.Context, node string, bytes int) error {
	p.mu.Lock()
	p.uncountedBytes[node] += max(bytes, MinPartBytes)
	look := p.uncountedBytes[node] > quotaCheckBytes
	p.mu.Unlock()
	if !look {
		return nil
	}
	filter := subject.PartPrefix + wire.Escape(node) + ".>"
	subjects, _, err := p.reader.ListSubjects(ctx, filter)
	if err != nil {
		return err
	}
	held := 0
	for _, subj := range subjects {
		_, length, _ := parsePartSubject(subj)
		held += max(length, MinPartBytes) // small parts cost the hub more than their bytes
	}
	if held > maxPartBytesPerNode {
		p.log.Warn("too many parts of one node", zap.String("node", node), zap.Int("bytes", held), zap.Int("parts", len(subjects)))
		if err := p.purgeParts(ctx, filter, jetstream.WithPurgeKeep(uint64(len(subjects)/2))); err != nil {
			return err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.uncountedBytes, node)
	return nil
}

func (p *Store) purgeParts(ctx context.Context, filter string, opts ...jetstream.StreamPurgeOpt) error {
	stream, err := p.js.Stream(ctx, subject.PartStream)
	if err != nil {
		return err
	}
	return stream.Purge(ctx, append(opts, jetstream.WithPurgeSubject(filter))...)
}

// parsePartRequest refuses requests that no pump sends.
func parsePartRequest(request []byte) (req wire.PartRequest, data []byte, err error) {
	line, data, _ := bytes.Cut(request, []byte("\n"))
	if err := call.DecodeRequest(line, &req); err != nil {
		return req, nil, err
	}
	end := req.Offset + len(data)
	switch {
	case !partIDPattern.MatchString(req.ID):
		return req, nil, envelope.PermanentErrorf("%.80q names no payload", req.ID)
	case req.Size <= 0 || req.Size > topology.MaxMessage || req.Offset < 0 || req.Offset > req.Size || end > req.Size:
		return req, nil, envelope.PermanentErrorf("%d bytes at %d of %d are no part", len(data), req.Offset, req.Size)
	case len(data) == 0 || len(data) < MinPartBytes && end != req.Size || len(data) > flow.MaxLinkBudget:
		return req, nil, envelope.PermanentErrorf("a part of %d bytes, %d to %d", len(data), MinPartBytes, flow.MaxLinkBudget)
	}
	return req, data, nil
}

// assemblePayload assembles a payload from parts of any sizes. upTo is the last sequence of the server that answered.
func (p *Store) assemblePayload(ctx context.Context, node, id string, size int) (payload []byte, upTo uint64, err error) {
	payload = make([]byte, size)
	type span struct{ from, to int }
	var spans []span
	got := 0
	for next := uint64(0); ; {
		page, err := p.reader.ReadPage(ctx, partFilter(node, id)+">", next, read.PageMessages, read.PageBytes)
		if err != nil {
			return nil, 0, err
		}
		for _, part := range page.Messages {
			got += len(part.Data)
			if offset, _, ok := parsePartSubject(part.Subject); ok && offset < size {
				spans = append(spans, span{offset, offset + copy(payload[offset:], part.Data)})
			}
		}
		if got > assembleSurplus*size+flow.MaxLinkBudget {
			return nil, math.MaxUint64, fmt.Errorf("%w: among %d bytes for one of %d", ErrIncomplete, got, size)
		}
		upTo, next = page.UpTo, page.LastSequence+1
		if !page.More {
			break
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	have := 0
	for _, s := range spans {
		if s.from <= have {
			have = max(have, s.to)
		}
	}
	if have < size {
		return nil, upTo, fmt.Errorf("%w: at %d of %d", ErrIncomplete, have, size)
	}
	if order, _, _ := strings.Cut(id, "-"); PayloadID(order, payload) != id {
		return nil, upTo, fmt.Errorf("%w: what is there is another payload", ErrIncomplete)
	}
	return payload, upTo, nil
}

// LoadPayload returns the payload of a report, whether it was sent whole or in parts.
func (p *Store) LoadPayload(ctx context.Context, msg jetstream.Msg) (payload []byte, err error) {
	id := msg.Headers().Get(envelope.HeaderParts)
	if id == "" {
		return msg.Data(), nil
	}
	_, node, _, err := subject.Parse(msg.Subject())
	if err != nil {
		return nil, envelope.PermanentErrorf("%v", err)
	}
	size, err := strconv.Atoi(msg.Headers().Get(envelope.HeaderSize))
	if err != nil || size <= 0 || size > topology.MaxMessage || !partIDPattern.MatchString(id) {
		return nil, envelope.PermanentErrorf("%.80q of %.20q bytes names no payload", id, msg.Headers().Get(envelope.HeaderSize))
	}
	jctx, cancel := context.WithTimeout(ctx, assembleTimeout)
	defer cancel()
	if payload, _, err = p.assemblePayload(jctx, node, id, size); err != nil {
		return nil, err
	}
	failpoint.At("part.joined")
	return payload, nil
}

// DeleteParts deletes the parts of a settled report; parts that cannot be deleted expire.
func (p *Store) DeleteParts(ctx context.Context, msg jetstream.Msg) {
	id := msg.Headers().Get(envelope.HeaderParts)
	_, node, _, err := subject.Parse(msg.Subject())
	if id == "" || err != nil || !partIDPattern.MatchString(id) {
		return
	}
	failpoint.At("part.settled")
	if err := p.purgeParts(ctx, partFilter(node, id)+">"); err != nil {
		p.log.Info("parts of a settled report left to expire", zap.String("subject", msg.Subject()), zap.Error(err))
	}
}
