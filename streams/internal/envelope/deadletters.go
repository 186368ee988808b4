package envelope

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// deadLetterTimeout bounds the storing of one dead letter.
const deadLetterTimeout = 5 * time.Second

// DeadLetterStore stores messages that can never be handled in the hub's stream DEAD.
type DeadLetterStore struct {
	Js      jetstream.JetStream
	Sender  string // a node's name, or "cloud"
	Metrics *metrics.Metrics
	Log     *zap.Logger
}

// Put stores a copy of the message with the reason and counts it. If it returns an error, nothing was stored and the caller must keep the
// message.
func (d *DeadLetterStore) Put(ctx context.Context, plane subject.Plane, subj string, header nats.Header, data []byte, reason error) error {
	return d.PutOf(ctx, "", plane, subj, header, data, reason)
}

// PutOf is Put for a message with an identity of its own: within two minutes, messages with the same subject and payload are one dead letter only if they have
// the same identity.
func (d *DeadLetterStore) PutOf(ctx context.Context, identity string, plane subject.Plane, subj string, header nats.Header, data []byte, reason error) error {
	ctx, cancel := context.WithTimeout(ctx, deadLetterTimeout)
	defer cancel()
	msg := &nats.Msg{Subject: subject.DeadLetterSubject(d.Sender, plane), Header: nats.Header{}, Data: data}
	for name, values := range header {
		if len(name) > 5 && name[:5] == "Nats-" {
			continue // a header of the server, about another stream
		}
		if len(values) != 0 && len(values[0]) <= maxHeaderValue {
			msg.Header[name] = values[:1]
		}
	}
	if len(data) > topology.MaxMessage {
		msg.Data = data[:topology.MaxMessage]
	}
	msg.Header[headerReason] = []string{SanitizeText(reason.Error())}
	msg.Header[headerSubject] = []string{SanitizeText(subj)}
	h := fnv.New64a()
	_, _ = h.Write([]byte(identity + subj)) // a hash never fails
	_, _ = h.Write(msg.Data)
	id := string(plane) + "/" + strconv.FormatUint(h.Sum64(), 16)
	if _, err := d.Js.PublishMsg(ctx, msg, jetstream.WithMsgID(id)); err != nil {
		return fmt.Errorf("store dead letter: %w", err)
	}
	d.Metrics.DeadLetters.WithLabelValues(string(plane)).Inc()
	d.Log.Warn("message dead-lettered", zap.String("subject", SanitizeText(subj)), zap.Int("bytes", len(data)), zap.Error(reason))
	return nil
}

// SanitizeText makes untrusted text fit for a header and a log line.
func SanitizeText(s string) string {
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
