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

// model is a hub stream that keeps the last message of each subject, a network that delivers in any order and more than
// once, and what the node itself deleted.
type model struct {
	*rapid.T
	ctx   context.Context //nolint:containedctx // of the test; a model lives as long as one
	open  func() *store.Store
	store *store.Store
	epoch int
	log   []wire.Message // sequence = index + 1
	came  map[uint64]bool
	dead  map[string]bool // UIDs deleted here, and those whose tombstone was delivered
	uids  int
}

func (m *model) name() string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(m.T, "name")
}

// current returns the newest message of a key.
func (m *model) current(name string) *wire.Message {
	for i := len(m.log) - 1; i >= 0; i-- {
		if m.log[i].Key.Name == name {
			return &m.log[i]
		}
	}
	return nil
}

func (m *model) publish() {
	name := m.name()
	seq, last := uint64(len(m.log)+1), m.current(name)
	if last != nil && last.Op == wire.Apply && rapid.Bool().Draw(m.T, "delete") {
		m.log = append(m.log, tombstone(seq, name, last.UID))
		return
	}
	uid := ""
	if last != nil && last.Op == wire.Apply && rapid.Bool().Draw(m.T, "same object") {
		uid = last.UID
	} else {
		m.uids++
		uid = fmt.Sprint("u", m.uids)
	}
	m.log = append(m.log, apply(seq, name, uid, fmt.Sprint(seq)))
}

// cursor is what a delivery would give: below it everything came, or was overtaken in the stream.
func (m *model) cursor() uint64 {
	for i, msg := range m.log {
		if !m.came[uint64(i+1)] && m.current(msg.Key.Name).Sequence == msg.Sequence {
			return uint64(i)
		}
	}
	return uint64(len(m.log))
}

func (m *model) deliver() {
	if len(m.log) == 0 {
		return
	}
	var batch []wire.Message
	for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(m.log)-1), 1, 6).Draw(m.T, "messages") {
		batch = append(batch, m.log[i])
	}
	m.apply(batch)
}

func (m *model) apply(batch []wire.Message) {
	passed := m.store.Cursor().Sequence // a tombstone below it was overtaken in the stream; what overtook it is yet to come
	for _, msg := range batch {
		m.came[msg.Sequence] = true
	}
	m.check(m.store.Apply(m.ctx, batch, m.cursor()))
	for _, msg := range batch {
		if msg.Op == wire.Delete && msg.Sequence > passed {
			m.dead[msg.UID] = true
		}
	}
}

func (m *model) replace() {
	var snapshot []wire.Message
	for i, msg := range m.log {
		m.came[uint64(i+1)] = true
		if m.current(msg.Key.Name).Sequence == msg.Sequence {
			snapshot = append(snapshot, msg)
		} else if msg.Op == wire.Apply && m.current(msg.Key.Name).UID != msg.UID {
			m.dead[msg.UID] = true
		}
	}
	m.check(m.store.Replace(m.ctx, snapshot, fmt.Sprint("s", m.epoch), uint64(len(m.log))))
}

// rebuilt is a stream made anew from what is wanted: other epoch, low sequences, no tombstones.
func (m *model) rebuilt() {
	var log []wire.Message
	for _, msg := range m.log {
		if last := m.current(msg.Key.Name); last.Sequence == msg.Sequence && msg.Op == wire.Apply {
			msg.Sequence = uint64(len(log) + 1)
			log = append(log, msg)
		} else {
			m.dead[msg.UID] = m.dead[msg.UID] || last.UID != msg.UID || last.Op == wire.Delete
		}
	}
	m.epoch++
	m.log, m.came = log, map[uint64]bool{}
	m.replace()
}

func (m *model) deleteHere() {
	name := m.name()
	e, err := m.store.Delete(m.ctx, key(name), "", nil)
	if errors.Is(err, store.ErrNotFound) {
		return
	}
	m.check(err)
	m.dead[e.UID] = true
}

func (m *model) putHere() {
	name := m.name()
	e, err := m.store.Get(key(name))
	if err != nil {
		return
	}
	_, err = m.store.Put(m.ctx, key(name), object(e.UID, "status of the node"), &e.Revision)
	m.check(err)
}

func (m *model) check(err error) {
	if err != nil {
		m.Fatal(err)
	}
}

// invariant: nothing dead is seen, and watch and list agree (checked by the watcher's replay).
func (m *model) invariant() {
	list, _ := m.store.All()
	for _, e := range list {
		if m.dead[e.UID] {
			m.Fatalf("%s is back with uid %s", e.Key.Human(), e.UID)
		}
	}
}

// settle delivers everything and compares with the hub.
func (m *model) settle() {
	m.apply(m.log)
	for _, name := range []string{"a", "b", "c", "d"} {
		e, err := m.store.Get(key(name))
		want := m.current(name)
		switch {
		case want == nil || want.Op == wire.Delete || m.dead[want.UID]:
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
		m := &model{T: rt, ctx: ctx, came: map[uint64]bool{}, dead: map[string]bool{}}
		m.open = func() *store.Store {
			s, err := store.Open(ctx, n.js, store.Config{}, zap.NewNop())
			if err != nil {
				rt.Fatal(err)
			}
			return s
		}
		m.store = m.open()
		m.replace()
		// A map is written next to the store by its watch, and must equal it in the end.
		seen := map[wire.Key]uint64{}
		w, err := m.store.Watch("", "configmaps", "", m.store.Revision())
		m.check(err)
		step := func(f func()) func(*rapid.T) { return func(*rapid.T) { f() } }
		rt.Repeat(map[string]func(*rapid.T){
			"publish": step(m.publish), "deliver": step(m.deliver), "replace": step(m.replace), "rebuilt": step(m.rebuilt),
			"delete here": step(m.deleteHere), "put here": step(m.putHere),
			"reopen": step(func() {
				follow(m.ctx, w, seen)
				before := m.store.Cursor()
				m.store = m.open()
				if m.store.Cursor() != before {
					rt.Fatalf("cursor %+v after reopening, want %+v", m.store.Cursor(), before)
				}
				w.Stop()
				w, err = m.store.Watch("", "configmaps", "", m.store.Revision())
				m.check(err)
			}),
			"": step(m.invariant),
		})
		m.settle()
		follow(m.ctx, w, seen)
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

// follow applies the events that are there to a map.
func follow(ctx context.Context, w *store.Watcher, seen map[wire.Key]uint64) {
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
