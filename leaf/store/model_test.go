package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// hubModel is a model of a hub stream that keeps the last message of each subject, of a network that delivers in any order
// and more than once, and of the node's own deletions.
type hubModel struct {
	*rapid.T
	ctx         context.Context //nolint:containedctx // of the test; a model lives as long as one
	open        func() *store.Store
	store       *store.Store
	epoch       int
	log         []wire.Message // sequence = index + 1
	delivered   map[uint64]bool
	deletedUIDs map[string]bool // UIDs deleted here, and those whose tombstone was delivered
	uids        int
}

func (m *hubModel) drawName() string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(m.T, "name")
}

// newestMessage returns the newest message of a key.
func (m *hubModel) newestMessage(name string) *wire.Message {
	for i := len(m.log) - 1; i >= 0; i-- {
		if m.log[i].Key.Name == name {
			return &m.log[i]
		}
	}
	return nil
}

func (m *hubModel) publishChange() {
	name := m.drawName()
	seq, last := uint64(len(m.log)+1), m.newestMessage(name)
	if last != nil && last.Op == wire.Apply && rapid.Bool().Draw(m.T, "delete") {
		m.log = append(m.log, deleteMessage(seq, name, last.UID))
		return
	}
	uid := ""
	if last != nil && last.Op == wire.Apply && rapid.Bool().Draw(m.T, "same object") {
		uid = last.UID
	} else {
		m.uids++
		uid = fmt.Sprint("u", m.uids)
	}
	m.log = append(m.log, applyMessage(seq, name, uid, fmt.Sprint(seq)))
}

// deliveredCursor returns the cursor of a delivery: each message below it has arrived, or was overtaken in the stream.
func (m *hubModel) deliveredCursor() uint64 {
	for i, msg := range m.log {
		if !m.delivered[uint64(i+1)] && m.newestMessage(msg.Key.Name).Sequence == msg.Sequence {
			return uint64(i)
		}
	}
	return uint64(len(m.log))
}

func (m *hubModel) deliverBatch() {
	if len(m.log) == 0 {
		return
	}
	var batch []wire.Message
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(m.log)-1), 1, 6).Draw(m.T, "messages") {
		batch = append(batch, m.log[i])
	}
	m.applyBatch(batch)
}

func (m *hubModel) applyBatch(batch []wire.Message) {
	passed := m.store.Cursor().Sequence // a tombstone below it was overtaken in the stream; the newer message is still to come
	for _, msg := range batch {
		m.delivered[msg.Sequence] = true
	}
	m.checkError(m.store.Apply(m.ctx, batch, m.deliveredCursor()))
	for _, msg := range batch {
		if msg.Op == wire.Delete && msg.Sequence > passed {
			m.deletedUIDs[msg.UID] = true
		}
	}
}

func (m *hubModel) replaceAll() {
	var snapshot []wire.Message
	for i, msg := range m.log {
		m.delivered[uint64(i+1)] = true
		if m.newestMessage(msg.Key.Name).Sequence == msg.Sequence {
			snapshot = append(snapshot, msg)
		} else if msg.Op == wire.Apply && m.newestMessage(msg.Key.Name).UID != msg.UID {
			m.deletedUIDs[msg.UID] = true
		}
	}
	m.checkError(m.store.Replace(m.ctx, snapshot, fmt.Sprint("s", m.epoch), uint64(len(m.log))))
}

// rebuildStream rebuilds the stream from the desired state: other epoch, low sequences, no tombstones.
func (m *hubModel) rebuildStream() {
	var log []wire.Message
	for _, msg := range m.log {
		if last := m.newestMessage(msg.Key.Name); last.Sequence == msg.Sequence && msg.Op == wire.Apply {
			msg.Sequence = uint64(len(log) + 1)
			log = append(log, msg)
		} else {
			m.deletedUIDs[msg.UID] = m.deletedUIDs[msg.UID] || last.UID != msg.UID || last.Op == wire.Delete
		}
	}
	m.epoch++
	m.log, m.delivered = log, map[uint64]bool{}
	m.replaceAll()
}

func (m *hubModel) deleteHere() {
	name := m.drawName()
	e, err := m.store.Delete(m.ctx, configMapKey(name), "", nil)
	if errors.Is(err, store.ErrNotFound) {
		return
	}
	m.checkError(err)
	m.deletedUIDs[e.UID] = true
}

func (m *hubModel) putHere() {
	name := m.drawName()
	e, err := m.store.Get(configMapKey(name))
	if err != nil {
		return
	}
	_, err = m.store.Put(m.ctx, configMapKey(name), objectJSON(e.UID, "status of the node"), &e.Revision)
	m.checkError(err)
}

func (m *hubModel) checkError(err error) {
	if err != nil {
		m.Fatal(err)
	}
}

// checkInvariant checks that no deleted object is visible, and that watch and list agree (by replaying the watcher).
func (m *hubModel) checkInvariant() {
	list, _ := m.store.All()
	for _, e := range list {
		if m.deletedUIDs[e.UID] {
			m.Fatalf("%s is back with uid %s", e.Key.Human(), e.UID)
		}
	}
}

// deliverAll delivers everything and compares with the hub.
func (m *hubModel) deliverAll() {
	m.applyBatch(m.log)
	for _, name := range []string{"a", "b", "c", "d"} {
		e, err := m.store.Get(configMapKey(name))
		want := m.newestMessage(name)
		switch {
		case want == nil || want.Op == wire.Delete || m.deletedUIDs[want.UID]:
			if err == nil {
				m.Fatalf("%s is %s/%d, want none", name, e.UID, e.Sequence)
			}
		case err != nil || e.UID != want.UID || e.Version != want.Version:
			m.Fatalf("%s is %s %s (%v), want %s %s", name, e.UID, e.Version, err, want.UID, want.Version)
		}
	}
	if c := m.store.Cursor(); c.Sequence != uint64(len(m.log)) {
		m.Fatalf("cursor %d, want %d", c.Sequence, len(m.log))
	}
}

func TestModel(t *testing.T) {
	n := newNode(t, store.Config{})
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		if s, err := n.js.Stream(ctx, "KV_store"); err != nil {
			rt.Fatal(err)
		} else if err := s.Purge(ctx); err != nil {
			rt.Fatal(err)
		}
		m := &hubModel{T: rt, ctx: ctx, delivered: map[uint64]bool{}, deletedUIDs: map[string]bool{}}
		m.open = func() *store.Store {
			s, err := store.Open(ctx, n.js, store.Config{}, zap.NewNop())
			if err != nil {
				rt.Fatal(err)
			}
			return s
		}
		m.store = m.open()
		m.replaceAll()
		// The watch fills a map beside the store; both must be equal at the end.
		seen := map[wire.Key]uint64{}
		w, err := m.store.Watch("", "configmaps", "", m.store.Revision())
		m.checkError(err)
		step := func(f func()) func(*rapid.T) { return func(*rapid.T) { f() } }
		rt.Repeat(map[string]func(*rapid.T){
			"publish": step(m.publishChange), "deliver": step(m.deliverBatch), "replace": step(m.replaceAll), "rebuilt": step(m.rebuildStream),
			"delete here": step(m.deleteHere), "put here": step(m.putHere),
			"reopen": step(func() {
				replayEvents(m.ctx, w, seen)
				before := m.store.Cursor()
				m.store = m.open()
				if m.store.Cursor() != before {
					rt.Fatalf("cursor %+v after reopening, want %+v", m.store.Cursor(), before)
				}
				w.Stop()
				w, err = m.store.Watch("", "configmaps", "", m.store.Revision())
				m.checkError(err)
			}),
			"": step(m.checkInvariant),
		})
		m.deliverAll()
		replayEvents(m.ctx, w, seen)
		w.Stop()
		list, _ := m.store.All()
		if len(list) != len(seen) {
			rt.Fatalf("the watch saw %d objects, the store holds %d", len(seen), len(list))
		}
		for _, e := range list {
			if seen[e.Key] != e.Revision {
				rt.Fatalf("the watch saw %s at %d, the store has it at %d", e.Key.Human(), seen[e.Key], e.Revision)
			}
		}
	})
}

// replayEvents applies the available events to a map.
func replayEvents(ctx context.Context, w *store.Watcher, seen map[wire.Key]uint64) {
	done, cancel := context.WithCancel(ctx)
	cancel()
	for {
		e, err := w.Next(done)
		if err != nil {
			return
		}
		if e.Type == store.Deleted {
			delete(seen, e.Entry.Key)
		} else {
			seen[e.Entry.Key] = e.Entry.Revision
		}
	}
}
