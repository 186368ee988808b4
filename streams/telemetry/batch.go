package telemetry

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/internal/lines"
	"github.com/frond-edge/frond/streams/topology"
)

// The headers of JetStream's atomic batches (ADR-50) and of an expected last sequence (ADR-31).
const (
	headerBatch           = "Nats-Batch-Id"
	headerBatchSequence   = "Nats-Batch-Sequence"
	headerBatchCommit     = "Nats-Batch-Commit"
	headerExpected        = "Nats-Expected-Last-Subject-Sequence"
	headerExpectedSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
)

// publish stores samples behind the message with the sequence last, all or none, and returns the sequence of the last one and the size of all.
func (r *Receiver) publish(ctx context.Context, node, run string, last uint64, list []lines.Line) (sequence, size uint64, err error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return 0, 0, fmt.Errorf("store "+r.kind.Noun+": %w", ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, topology.StepTimeout)
	defer cancel()
	id := rand.Text()
	for i := range list {
		msg := r.newMessage(node, run, &list[i])
		if i == 0 {
			msg.Header[headerExpected] = []string{strconv.FormatUint(last, 10)}
			msg.Header[headerExpectedSubject] = []string{r.kind.All(node)}
		}
		if len(list) > 1 {
			msg.Header[headerBatch] = []string{id}
			msg.Header[headerBatchSequence] = []string{strconv.Itoa(i + 1)}
		}
		size += uint64(msg.Size()) //nolint:gosec // not negative
		if i < len(list)-1 {
			if err := r.nc.PublishMsg(msg); err != nil {
				return 0, 0, fmt.Errorf("store "+r.kind.Noun+": %w", err)
			}
			continue
		}
		if len(list) > 1 {
			msg.Header[headerBatchCommit] = []string{"1"}
		}
		r.kind.ReachCommit()
		sequence, err = r.commit(ctx, msg)
		return sequence, size, err
	}
	return last, 0, nil
}

// commit sends the last message and waits for the answer to all.
func (r *Receiver) commit(ctx context.Context, msg *nats.Msg) (uint64, error) {
	answer, err := r.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return 0, fmt.Errorf("store "+r.kind.Noun+": %w", err)
	}
	var ack struct {
		Sequence uint64              `json:"seq"`
		Error    *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("store "+r.kind.Noun+": answer: %w", err)
	}
	if ack.Error == nil {
		return ack.Sequence, nil
	}
	switch ack.Error.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return 0, errOvertaken
	default:
		return 0, fmt.Errorf("store "+r.kind.Noun+": %w", ack.Error)
	}
}

// timeFormat has milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// newMessage returns the message of a line.
func (r *Receiver) newMessage(node, run string, l *lines.Line) *nats.Msg {
	msg := r.kind.Encode(node, l)
	clock := "unsynced"
	if l.ClockSynced {
		clock = "synced"
	}
	msg.Header[lines.HeaderNumber], msg.Header[lines.HeaderRun], msg.Header[lines.HeaderClock] = []string{strconv.FormatUint(l.Number, 10)}, []string{run}, []string{clock}
	msg.Header[lines.HeaderGatewayTime] = []string{time.UnixMilli(l.GatewayTime).UTC().Format(timeFormat)}
	if l.Previous != 0 {
		msg.Header[lines.HeaderPrevious] = []string{strconv.FormatUint(l.Previous, 10)}
	}
	if l.DeviceTime != 0 {
		msg.Header[lines.HeaderDeviceTime] = []string{time.UnixMilli(l.DeviceTime).UTC().Format(timeFormat)}
	}
	return msg
}
