package streams

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
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/crash"
)

// maxChunkedReports is how many large reports are in memory at a time, of at most 4 MiB each. With more of them in the outbox the small
// ones behind those wait.
const maxChunkedReports = 8

// chunkedReport is a report that is larger than what the link takes at a time: its payload goes to the hub in parts, then it follows itself.
type chunkedReport struct {
	msg jetstream.Msg
	// out is the report as it would be sent whole, id names its parts.
	out *nats.Msg
	id  string
	// replaced: there is a newer state of the object.
	replaced atomic.Bool
	// undivided: the cloudcore that answered is older than parts. The carrier sets it before it gives the parcel back.
	sendWhole bool
}

// uploadProgress is how much of a payload of size the hub has, and where the last part that it took begins.
type uploadProgress struct{ sent, last, size int }

// errPartsUnsupported says that a cloudcore does not know of parts.
var errPartsUnsupported = errors.New("the cloudcore is older than parts")

// resendLastParts lets the last part of each payload that was through be sent once more before its pointer is: the cloud may have handled
// the report meanwhile and forgotten the parts, and says so.
func resendLastParts(sent map[string]uploadProgress) {
	for id, p := range sent {
		if p.sent == p.size {
			p.sent = p.last
			sent[id] = p
		}
	}
}

// referenceMessage is the report without its payload, and where that is; or all of it for a cloudcore that is older than parts.
func (p *chunkedReport) referenceMessage() *nats.Msg {
	if p.sendWhole {
		return p.out
	}
	header := maps.Clone(p.out.Header)
	header[headerParts], header[headerSize] = []string{p.id}, []string{strconv.Itoa(len(p.out.Data))}
	return &nats.Msg{Subject: p.out.Subject, Header: header}
}

// uploadPayloads brings the payloads of parcels to the hub, one after the other, until ctx ends.
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

// uploadPayload brings one payload to the hub, unless it is replaced meanwhile. It tries until ctx ends: what holds up the parts, such as
// that no cloudcore lives, does not hold up small reports.
func (s *pumpSession) uploadPayload(ctx context.Context, next *chunkedReport) error {
	retry := newRetryBackoff()
	if len(s.pump.uploadedParts) > 4*maxChunkedReports { // most of them are through
		clear(s.pump.uploadedParts)
	}
	for s.pump.uploadedParts[next.id].sent < len(next.out.Data) && !next.replaced.Load() {
		err := s.uploadPart(ctx, next)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			retry = newRetryBackoff()
			s.pump.metrics.parts.WithLabelValues("ok").Inc()
			continue
		case errors.Is(err, errPartsUnsupported):
			next.sendWhole = true
			return nil
		}
		s.pump.metrics.parts.WithLabelValues("error").Inc()
		s.pump.log.Debug("part not taken", zap.String("subject", next.out.Subject), zap.Error(err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry.Step()):
		}
	}
	return nil
}

// uploadPart brings the next part to the hub.
func (s *pumpSession) uploadPart(ctx context.Context, next *chunkedReport) error {
	have, size := s.pump.uploadedParts[next.id].sent, len(next.out.Data)
	body, err := json.Marshal(wire.PartRequest{ID: next.id, Offset: have, Size: size})
	if err != nil {
		return err
	}
	end := min(have+max(s.pump.bandwidth.budget()/2, minPartBytes), size) // a half, so that small ones find room beside it
	body = append(append(body, '\n'), next.out.Data[have:end]...)
	f, err := s.window.acquire(ctx, len(body))
	if err != nil {
		return err
	}
	pctx, cancel := context.WithTimeout(ctx, pumpTimeout)
	defer cancel()
	msg, err := s.pump.nc.RequestWithContext(pctx, callPrefix+subjectToken(next.out.Subject, 1)+"."+VerbPart, body)
	s.window.release(f, err == nil)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			s.pump.bandwidth.observeTimeout()
		}
		return err
	}
	crash.At("part.sent")
	var reply wire.PartReply
	switch err := json.Unmarshal(msg.Data, &reply); {
	case err != nil:
		return fmt.Errorf("answer: %w", err)
	case strings.HasSuffix(reply.Error, fmt.Sprintf(unknownVerbFormat, VerbPart)):
		return errPartsUnsupported
	case reply.Error != "":
		return errors.New(reply.Error)
	case reply.Incomplete:
		delete(s.pump.uploadedParts, next.id)
		return errIncomplete
	}
	s.pump.uploadedParts[next.id] = uploadProgress{sent: end, last: have, size: size}
	return nil
}
