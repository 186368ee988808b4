package streams_test

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams"
)

// pieceworld is a stream that keeps the last message of each name, and a node that lists and watches it, fetches what is large
// later, and forgets at a restart all but its store and the cursor.
type pieceworld struct {
	*rapid.T
	last  map[string]uint64 // the stream: the last message of each name
	large map[uint64]bool   // by sequence
	top   uint64            // of the stream

	store  map[string]uint64 // on disk
	cursor uint64            // on disk
	now    streams.Backlog
}

func (w *pieceworld) publish() {
	w.top++
	w.last[rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(w.T, "name")] = w.top
	w.large[w.top] = rapid.Bool().Draw(w.T, "large")
}

// bring hands over what the stream holds after the place that was reached, up to a sequence; in a watch, up to the first large one.
func (w *pieceworld) bring(upTo uint64, watch bool) {
	messages, marks := map[string]uint64{}, map[string]uint64{}
	reached := w.now.Reached()
	for sequence := reached + 1; sequence <= upTo; sequence++ {
		for name, last := range w.last {
			if last != sequence {
				continue
			}
			if w.large[last] && watch {
				w.save(messages, marks, reached)
				return
			}
			if w.large[last] {
				marks[name] = last
			} else {
				messages[name] = last
			}
		}
		reached = sequence
	}
	w.save(messages, marks, reached)
}

func (w *pieceworld) save(messages, marks map[string]uint64, sequence uint64) {
	next := w.now.After(messages, marks, sequence)
	for name, sequence := range messages {
		w.store[name] = max(w.store[name], sequence)
	}
	w.cursor = max(w.cursor, next.Low())
	w.now = next
}

// fetch brings the payload of one mark, if the stream still has it.
func (w *pieceworld) fetch() {
	for name, sequence := range w.now.Marks() {
		if w.last[name] == sequence {
			w.save(map[string]uint64{name: sequence}, nil, 0)
			return
		}
	}
}

func (w *pieceworld) restart() { w.now = streams.Backlog{}.After(nil, nil, w.cursor) }

// check: the cursor claims only what is on disk, and what it does not claim is known to be missing.
func (w *pieceworld) check() {
	if low := w.now.Low(); low != w.cursor {
		w.Fatalf("the cursor is %d on disk, %d by the backlog %v", w.cursor, low, w.now.Marks())
	}
	for name, sequence := range w.last {
		if sequence <= w.cursor && w.store[name] < sequence {
			w.Fatalf("the cursor %d claims %s of %d, the store has %d", w.cursor, name, sequence, w.store[name])
		}
		if sequence <= w.now.Reached() && w.store[name] < sequence && w.now.Marks()[name] != sequence {
			w.Fatalf("%s of %d is neither in the store nor a mark", name, sequence)
		}
	}
}

// Whatever comes between, the cursor is honest, and in the end everything is there.
func TestBacklogModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &pieceworld{T: rt, last: map[string]uint64{}, large: map[uint64]bool{}, store: map[string]uint64{}}
		step := func(f func()) func(*rapid.T) { return func(*rapid.T) { f() } }
		rt.Repeat(map[string]func(*rapid.T){
			"publish": step(w.publish), "attach": step(func() { w.bring(w.top, false) }), "watch": step(func() { w.bring(w.top, true) }),
			"fetch": step(w.fetch), "restart": step(w.restart), "": step(w.check),
		})
		for range 10 {
			w.bring(w.top, false)
			w.fetch()
		}
		w.check()
		if w.cursor != w.top {
			rt.Fatalf("in the end the cursor is %d of %d, with marks %v", w.cursor, w.top, w.now.Marks())
		}
	})
}

func FuzzPieceRequest(f *testing.F) {
	f.Add([]byte(`{"streamEpoch":"e","subject":"desired.edge_1.core.configmaps.a.b","seq":7,"offset":0,"length":100}`))
	f.Add([]byte(`{"subject":"desired.edge_2.core.configmaps.a.b","seq":7,"offset":0,"length":100}`))
	f.Add([]byte(`{"subject":"report.edge_1.core.configmaps.a.b","seq":7,"offset":-1,"length":100}`))
	f.Add([]byte(`{"subject":"desired.edge_1.>","seq":7,"length":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := streams.PieceRequest("edge.1", data)
		if err != nil {
			if !errors.Is(err, wire.ErrPermanent) {
				t.Errorf("%v does not say that it is garbage", err)
			}
			return
		}
		plane, node, _, err := streams.ParseSubject(req.Subject)
		if err != nil || plane != streams.Desired || node != "edge.1" || req.Offset < 0 || req.Length <= 0 {
			t.Errorf("taken: %+v, %v", req, err)
		}
	})
}

func FuzzPieceAnswer(f *testing.F) {
	f.Add("100", "", []byte("0123456789"))
	f.Add("", "true", []byte(nil))
	f.Add("", "", []byte(`{"error":"no"}`))
	f.Add("-1", "", []byte("x"))
	f.Fuzz(func(t *testing.T, size, gone string, data []byte) {
		const have, whole, take = 40, 100, 50
		msg := &nats.Msg{Header: nats.Header{"Frond-Size": {size}, "Frond-Gone": {gone}}, Data: data}
		got, err := streams.PieceOf(msg, have, whole, take)
		if err != nil {
			return
		}
		n, err := strconv.Atoi(size)
		if err != nil || n != whole || len(got) == 0 || len(got) > take || have+len(got) > whole || !bytes.Equal(got, data) {
			t.Errorf("taken: %s", fmt.Sprintf("%d bytes of %q", len(got), size))
		}
	})
}
