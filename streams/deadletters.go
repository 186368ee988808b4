package streams

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// deadLetterTimeout bounds the storing of one dead letter.
const deadLetterTimeout = 5 * time.Second

// deadLetterStore stores messages that can never be handled in the hub's stream DEAD.
type deadLetterStore struct {
	js      jetstream.JetStream
	sender  string // a node's name, or "cloud"
	metrics *Metrics
	log     *zap.Logger
}

// put stores a copy of the message with the reason and counts it. If it returns an error, nothing was stored and the caller must keep the
// message.
func (d *deadLetterStore) put(ctx context.Context, plane Plane, subject string, header nats.Header, data []byte, reason error) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	msg := &nats.Msg{Subject: DeadLetterSubject(d.sender, plane), Header: nats.Header{}, Data: data}
	for name, values := range header {
		if len(name) > 5 && name[:5] == "Nats-" {
			continue // a header of the server, about another stream
		}
		if len(values) != 0 && len(values[0]) <= maxHeaderValue {
			msg.Header[name] = values[:1]
		}
	}
	if len(data) > maxMessage {
		msg.Data = data[:maxMessage]
	}
	msg.Header[headerReason] = []string{sanitizeText(reason.Error())}
	msg.Header[headerSubject] = []string{sanitizeText(subject)}
	h := fnv.New64a()
	_, _ = h.Write([]byte(subject)) // a hash never fails
	_, _ = h.Write(msg.Data)
	id := string(plane) + "/" + strconv.FormatUint(h.Sum64(), 16)
	if _, err := d.js.PublishMsg(ctx, msg, jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("store dead letter: %w", err)
	}
	d.metrics.deadLetters.WithLabelValues(string(plane)).Inc()
	d.log.Warn("message dead-lettered", zap.String("subject", sanitizeText(subject)), zap.Int("bytes", len(data)), zap.Error(reason))
	return nil
}

// sanitizeText makes untrusted text fit for a header and a log line.
func sanitizeText(s string) string {
	const most = 512
	out := make([]rune, 0, min(len(s), most))
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			r = '?'
		}
		if out = append(out, r); len(out) == most {
			break
		}
	}
	return string(out)
}
