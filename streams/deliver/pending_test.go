package deliver_test

import (
	"bytes"
	"fmt"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"github.com/frond-edge/frond/streams/deliver"
)

// deliveryModel models a stream that keeps the last message of each name, and a node that lists and watches it, fetches large messages
// later, and forgets at a restart everything except its store and the cursor.
type deliveryModel struct {
	*rapid.T
	last  map[string]uint64 // the stream: the last message of each name
	large map[uint64]bool   // by sequence
	top   uint64            // of the stream

	store    map[string]uint64 // on disk
	cursor   uint64            // on disk
	progress deliver.DeliveryProgress
}

func (w *deliveryModel) publishMessage() {
	w.top++
	w.last[rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(w.T, "name")] = w.top
	w.large[w.top] = rapid.Bool().Draw(w.T, "large")
}

// deliverUpTo delivers the stream's messages after the reached sequence, up to a sequence; in a watch, up to the first large one.
func (w *deliveryModel) deliverUpTo(upTo uint64, watch bool) {
	messages, marks := map[string]uint64{}, map[string]uint64{}
	reached := w.progress.Reached()
	for sequence := reached + 1; sequence <= upTo; sequence++ {
		for name, last := range w.last {
			if last != sequence {
				continue
			}
			if w.large[last] && watch {
				w.saveBatch(messages, marks, reached)
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
	w.saveBatch(messages, marks, reached)
}

func (w *deliveryModel) saveBatch(messages, marks map[string]uint64, sequence uint64) {
	next := w.progress.ApplyBatch(messages, marks, sequence)
	for name, sequence := range messages {
		w.store[name] = max(w.store[name], sequence)
	}
	w.cursor = max(w.cursor, next.SafeCursor())
	w.progress = next
}

// fetchPending fetches the payload of one pending object, if the stream still has it.
func (w *deliveryModel) fetchPending() {
	for name, sequence := range w.progress.Pending() {
		if w.last[name] == sequence {
			w.saveBatch(map[string]uint64{name: sequence}, nil, 0)
			return
		}
	}
}

func (w *deliveryModel) restartNode() {
	w.progress = deliver.DeliveryProgress{}.ApplyBatch(nil, nil, w.cursor)
}

// checkCursor checks that the cursor covers only what is on disk, and that everything beyond it is known to be missing.
func (w *deliveryModel) checkCursor() {
	if low := w.progress.SafeCursor(); low != w.cursor {
		w.Fatalf("the cursor is %d on disk, %d by the backlog %v", w.cursor, low, w.progress.Pending())
	}
	for name, sequence := range w.last {
		if sequence <= w.cursor && w.store[name] < sequence {
			w.Fatalf("the cursor %d claims %s of %d, the store has %d", w.cursor, name, sequence, w.store[name])
		}
		if sequence <= w.progress.Reached() && w.store[name] < sequence && w.progress.Pending()[name] != sequence {
			w.Fatalf("%s of %d is neither in the store nor a mark", name, sequence)
		}
	}
}

// In any order of events the cursor covers only saved objects, and in the end everything is there.
func TestDeliveryProgress_CursorClaimsOnlySavedObjects(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &deliveryModel{T: rt, last: map[string]uint64{}, large: map[uint64]bool{}, store: map[string]uint64{}}
		step := func(f func()) func(*rapid.T) { return func(*rapid.T) { f() } }
		rt.Repeat(map[string]func(*rapid.T){
			"publish": step(w.publishMessage), "attach": step(func() { w.deliverUpTo(w.top, false) }), "watch": step(func() { w.deliverUpTo(w.top, true) }),
			"fetch": step(w.fetchPending), "restart": step(w.restartNode), "": step(w.checkCursor),
		})
		for range 10 {
			w.deliverUpTo(w.top, false)
			w.fetchPending()
		}
		w.checkCursor()
		if w.cursor != w.top {
			rt.Fatalf("in the end the cursor is %d of %d, with marks %v", w.cursor, w.top, w.progress.Pending())
		}
	})
}

func FuzzParsePieceReply(f *testing.F) {
	f.Add("100", "", []byte("0123456789"))
	f.Add("", "true", []byte(nil))
	f.Add("", "", []byte(`{"error":"no"}`))
	f.Add("-1", "", []byte("x"))
	f.Fuzz(func(t *testing.T, size, gone string, data []byte) {
		const have, whole, take = 40, 100, 50
		msg := &nats.Msg{Header: nats.Header{"Frond-Size": {size}, "Frond-Gone": {gone}}, Data: data}
		got, err := deliver.ParsePieceReply(msg, have, whole, take)
		if err != nil {
			return
		}
		n, err := strconv.Atoi(size)
		if err != nil || n != whole || len(got) == 0 || len(got) > take || have+len(got) > whole || !bytes.Equal(got, data) {
			t.Errorf("taken: %s", fmt.Sprintf("%d bytes of %q", len(got), size))
		}
	})
}
