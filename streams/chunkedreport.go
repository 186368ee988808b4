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

// mostParcels is how many large reports are in memory at a time, of at most 4 MiB each. With more of them in the outbox the small
// ones behind those wait.
const mostParcels = 8

// parcel is a report that is larger than what the link takes at a time: its payload goes to the hub in parts, then it follows itself.
type parcel struct {
	msg jetstream.Msg
	// out is the report as it would be sent whole, id names its parts.
	out *nats.Msg
	id  string
	// replaced: there is a newer state of the object.
	replaced atomic.Bool
	// undivided: the cloudcore that answered is older than parts. The carrier sets it before it gives the parcel back.
	undivided bool
}

// progress is how much of a payload of size the hub has, and where the last part that it took begins.
type progress struct{ have, last, size int }

// errUndivided says that a cloudcore does not know of parts.
var errUndivided = errors.New("the cloudcore is older than parts")

// proveAgain lets the last part of each payload that was through be sent once more before its pointer is: the cloud may have handled
// the report meanwhile and forgotten the parts, and says so.
func proveAgain(sent map[string]progress) {
	for id, p := range sent {
		if p.have == p.size {
			p.have = p.last
			sent[id] = p
		}
	}
}

// report is the report without its payload, and where that is; or all of it for a cloudcore that is older than parts.
func (p *parcel) report() *nats.Msg {
	if p.undivided {
		return p.out
	}
	header := maps.Clone(p.out.Header)
	header[headerParts], header[headerSize] = []string{p.id}, []string{strconv.Itoa(len(p.out.Data))}
	return &nats.Msg{Subject: p.out.Subject, Header: header}
}

// carry brings the payloads of parcels to the hub, one after the other, until ctx ends.
func (s *sending) carry(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case next := <-s.boxed:
			if err := s.upload(ctx, next); err != nil {
				return err
			}
			if next.replaced.Load() {
				continue
			}
			select {
			case s.whole <- next:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// upload brings one payload to the hub, unless it is replaced meanwhile. It tries until ctx ends: what holds up the parts, such as
// that no cloudcore lives, does not hold up small reports.
func (s *sending) upload(ctx context.Context, next *parcel) error {
	retry := newRetry()
	if len(s.p.sent) > 4*mostParcels { // most of them are through
		clear(s.p.sent)
	}
	for s.p.sent[next.id].have < len(next.out.Data) && !next.replaced.Load() {
		err := s.part(ctx, next)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			retry = newRetry()
			s.p.metrics.parts.WithLabelValues("ok").Inc()
			continue
		case errors.Is(err, errUndivided):
			next.undivided = true
			return nil
		}
		s.p.metrics.parts.WithLabelValues("error").Inc()
		s.p.log.Debug("part not taken", zap.String("subject", next.out.Subject), zap.Error(err))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry.Step()):
		}
	}
	return nil
}

// part brings the next part to the hub.
func (s *sending) part(ctx context.Context, next *parcel) error {
	have, size := s.p.sent[next.id].have, len(next.out.Data)
	body, err := json.Marshal(wire.PartRequest{ID: next.id, Offset: have, Size: size})
	if err != nil {
		return err
	}
	end := min(have+max(s.p.pace.take()/2, leastPart), size) // a half, so that small ones find room beside it
	body = append(append(body, '\n'), next.out.Data[have:end]...)
	f, err := s.room.enter(ctx, len(body))
	if err != nil {
		return err
	}
	pctx, cancel := context.WithTimeout(ctx, pumpTimeout)
	defer cancel()
	msg, err := s.p.nc.RequestWithContext(pctx, callPrefix+token(next.out.Subject, 1)+"."+VerbPart, body)
	s.room.leave(f, err == nil)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			s.p.pace.unanswered()
		}
		return err
	}
	crash.At("part.sent")
	var reply wire.PartReply
	switch err := json.Unmarshal(msg.Data, &reply); {
	case err != nil:
		return fmt.Errorf("answer: %w", err)
	case strings.HasSuffix(reply.Error, fmt.Sprintf(unknownVerb, VerbPart)):
		return errUndivided
	case reply.Error != "":
		return errors.New(reply.Error)
	case reply.Lacking:
		delete(s.p.sent, next.id)
		return errLacking
	}
	s.p.sent[next.id] = progress{have: end, last: have, size: size}
	return nil
}
