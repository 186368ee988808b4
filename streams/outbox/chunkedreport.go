package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// maxChunkedReports limits the large reports in memory, of at most 4 MiB each. If the outbox holds more of them, the small reports behind
// those wait.
const maxChunkedReports = 8

// chunkedReport is a report larger than the link takes at a time: its payload goes to the hub in parts, then the report follows.
type chunkedReport struct {
	msg Report
	// out is the report as it would be sent whole; id names its parts.
	out *nats.Msg
	id  string
	// replaced says that the outbox holds a newer state of the object.
	replaced atomic.Bool
	// sendWhole says that the cloudcore that answered is older than parts. uploadPayloads sets it before it returns the report.
	sendWhole bool
}

// uploadProgress records how many bytes of a payload of size the hub has, and where the last part that it took begins.
type uploadProgress struct{ sent, last, size int }

// errPartsUnsupported reports that the cloudcore does not support parts.
var errPartsUnsupported = errors.New("the cloudcore is older than parts")

// resendLastParts makes each completely uploaded payload send its last part once more before its reference message: the cloud may have
// handled the report meanwhile and deleted the parts, and its reply says so.
func resendLastParts(sent map[string]uploadProgress) {
	for id, p := range sent {
		if p.sent == p.size {
			p.sent = p.last
			sent[id] = p
		}
	}
}

// referenceMessage returns the report with a reference in place of its payload, or the whole report for a cloudcore that is older than
// parts.
func (p *chunkedReport) referenceMessage() *nats.Msg {
	if p.sendWhole {
		return p.out
	}
	header := maps.Clone(p.out.Header)
	header[envelope.HeaderParts], header[envelope.HeaderSize] = []string{p.id}, []string{strconv.Itoa(len(p.out.Data))}
	return &nats.Msg{Subject: p.out.Subject, Header: header}
}

// uploadPayloads uploads the payloads of large reports to the hub, one after the other, until ctx ends.
func (s *pumpSession) uploadPayloads(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next := <-s.toUpload:
			if err := s.uploadPayload(ctx, next); err != nil {
				return err
			}
			if next.replaced.Load() {
				continue
			}
			select {
			case s.uploaded <- next:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// uploadPayload uploads one payload to the hub, unless it is replaced meanwhile. It tries until ctx ends: an obstacle to the parts, such
// as that no cloudcore is running, does not hold up small reports.
func (s *pumpSession) uploadPayload(ctx context.Context, next *chunkedReport) error {
	retry := flow.NewRetryBackoff()
	if len(s.pump.uploadedParts) > 4*maxChunkedReports { // most of them are complete
		clear(s.pump.uploadedParts)
	}
	for s.pump.uploadedParts[next.id].sent < len(next.out.Data) && !next.replaced.Load() {
		err := s.uploadPart(ctx, next)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			retry = flow.NewRetryBackoff()
			s.pump.metrics.Parts.WithLabelValues("ok").Inc()
			continue
		case errors.Is(err, errPartsUnsupported):
			next.sendWhole = true
			return nil
		}
		s.pump.metrics.Parts.WithLabelValues("error").Inc()
		s.pump.log.Debug("part not taken", zap.String("subject", next.out.Subject), zap.Error(err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry.Step()):
		}
	}
	return nil
}

// uploadPart uploads the next part to the hub.
func (s *pumpSession) uploadPart(ctx context.Context, next *chunkedReport) error {
	have, size := s.pump.uploadedParts[next.id].sent, len(next.out.Data)
	body, err := json.Marshal(wire.PartRequest{ID: next.id, Offset: have, Size: size})
	if err != nil {
		return err
	}
	end := min(have+max(s.pump.bandwidth.Budget()/2, chunk.MinPartBytes), size) // half the budget, so that small reports find room beside it
	body = append(append(body, '\n'), next.out.Data[have:end]...)
	f, err := s.window.acquire(ctx, len(body))
	if err != nil {
		return err
	}
	pctx, cancel := context.WithTimeout(ctx, topology.PumpTimeout)
	defer cancel()
	msg, err := s.pump.nc.RequestWithContext(pctx, subject.CallPrefix+flow.SubjectToken(next.out.Subject, 1)+"."+subject.VerbPart, body)
	s.window.release(f, err == nil)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			s.pump.bandwidth.ObserveTimeout()
		}
		return err
	}
	failpoint.At("part.sent")
	var reply wire.PartReply
	switch err := json.Unmarshal(msg.Data, &reply); {
	case err != nil:
		return fmt.Errorf("answer: %w", err)
	case strings.HasSuffix(reply.Error, fmt.Sprintf(call.UnknownVerbFormat, subject.VerbPart)):
		return errPartsUnsupported
	case reply.Error != "":
		return errors.New(reply.Error)
	case reply.Incomplete:
		delete(s.pump.uploadedParts, next.id)
		return chunk.ErrIncomplete
	}
	s.pump.uploadedParts[next.id] = uploadProgress{sent: end, last: have, size: size}
	return nil
}
