package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/outbox/memory"
	"github.com/frond-edge/frond/test/kit"
)

func report(name, object string) wire.Message {
	return wire.Message{Key: wire.Key{Resource: "pods", Namespace: "ns", Name: name}, Op: wire.Apply, UID: "u", Object: []byte(object)}
}

// Of several states of one object the last is kept, in the place of the newest; what was read and not acked is read again by the next reader.
func TestOutbox_LastStateUntilItsAck(t *testing.T) {
	codec, err := memory.NewCodec()
	kit.Must(t, err)
	box := memory.New("lt-1", "epoch", codec)
	kit.Must(t, box.Report(report("a", `{"n":1}`)))
	kit.Must(t, box.Report(report("b", `{"n":2}`)))
	kit.Must(t, box.Report(report("a", `{"n":3}`)))
	for range 2 {
		reader, err := box.Open(t.Context())
		kit.Must(t, err)
		for _, want := range []string{`{"n":2}`, `{"n":3}`} {
			r, err := reader.Next(t.Context())
			kit.Must(t, err)
			if string(r.Data()) != want {
				t.Errorf("read %s, want %s", r.Data(), want)
			}
		}
		if ahead := reader.Drain(); len(ahead) != 0 {
			t.Errorf("%d reports read ahead", len(ahead))
		}
	}
	reader, err := box.Open(t.Context())
	kit.Must(t, err)
	b, err := reader.Next(t.Context())
	kit.Must(t, err)
	kit.Must(t, box.Report(report("b", `{"n":4}`))) // b is on its way
	kit.Must(t, b.Ack())
	if n, _, _ := box.Depth(t.Context()); n != 2 {
		t.Errorf("%d reports wait: the ack of the state before has removed the new one", n)
	}
	for range 2 {
		r, err := reader.Next(t.Context())
		kit.Must(t, err)
		kit.Must(t, r.Ack())
	}
	if n, _, _ := box.Depth(t.Context()); n != 0 {
		t.Errorf("%d reports wait", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := reader.Next(ctx); err == nil {
		t.Error("read a report of an empty outbox")
	}
}
