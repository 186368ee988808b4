package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/internal/lines"
)

// ErrOvertaken exports errOvertaken.
var ErrOvertaken = errOvertaken

// Request returns a request with the given lines.
func Request(t testing.TB, run string, list ...string) []byte {
	t.Helper()
	encoder, err := zstd.NewWriter(nil, zstd.WithWindowSize(256<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = encoder.Close() }()
	var records [][]byte
	for _, l := range list {
		records = append(records, encoder.EncodeAll([]byte(l+"\n"), nil))
	}
	body, err := lines.EncodeRequest(run, records)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// Many returns a request with n samples.
func Many(t testing.TB, n int) []byte {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "{\"n\":%d,\"s\":\"plant\",\"d\":\"boiler\",\"p\":\"c\"}\n", i+1)
	}
	return Request(t, "a", b.String())
}

// Bomb returns a small request that decompresses to more than a cloudcore takes.
func Bomb(t testing.TB) []byte {
	t.Helper()
	return Request(t, "a", string(bytes.Repeat([]byte(" "), 16<<20)))
}

// LoseAnswers makes the store's next n records be stored without an answer, as a disk does that stands still.
func LoseAnswers(s *Store, n int) { s.js = &forgetful{JetStream: s.js, lost: n} }

// forgetful loses the first answers.
type forgetful struct {
	jetstream.JetStream
	lost int
}

func (f *forgetful) PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	ack, err := f.JetStream.PublishMsg(ctx, msg, opts...)
	if err == nil && f.lost > 0 {
		f.lost--
		return nil, context.DeadlineExceeded
	}
	return ack, err
}
