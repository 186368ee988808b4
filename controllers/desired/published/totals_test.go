package published_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// walkInventory computes State.Inventory from all records.
func walkInventory(records map[wire.Key]published.Record, except []wire.Key) (census wire.Inventory, upTo uint64) {
	for key, r := range records {
		upTo = max(upTo, r.Sequence)
		if !r.Deleted && key != wire.SnapshotMarker() && !slices.Contains(except, key) {
			census.Add(key, r.UID, r.Version)
		}
	}
	return census, upTo
}

// walkProgress computes State.Progress from all records.
func walkProgress(records map[wire.Key]published.Record, sequence uint64) (behind int, oldest time.Time) {
	for key, r := range records {
		if r.Sequence <= sequence || key == wire.SnapshotMarker() {
			continue
		}
		if behind++; oldest.IsZero() || r.MadeAt.Before(oldest) {
			oldest = r.MadeAt
		}
	}
	return behind, oldest
}

// stateModel is a State and what it must hold.
type stateModel struct {
	state   published.State
	records map[wire.Key]published.Record
	top     uint64
	keys    []wire.Key
}

func (m *stateModel) drawMessage(t *rapid.T, sequence uint64) wire.Message {
	made := message(rapid.SampledFrom([]wire.Operation{wire.Apply, wire.Delete}).Draw(t, "op"), fmt.Sprint(sequence), sequence)
	made.UID = rapid.SampledFrom([]string{"", "u", "v"}).Draw(t, "uid")
	made.Time = time.Unix(rapid.Int64Range(1, 9).Draw(t, "time"), 0)
	return made
}

// store stores a few new messages in any order, as workers do that publish at the same time.
func (m *stateModel) store(t *rapid.T) {
	top := m.top
	for _, i := range rapid.Permutation([]uint64{1, 2, 3}).Draw(t, "order") {
		key := rapid.SampledFrom(m.keys).Draw(t, "key")
		if m.records[key].Sequence > top {
			continue // one worker at a time for a key
		}
		r := published.RecordOf(m.drawMessage(t, top+i), "one")
		m.state.Store(key, r, top)
		m.top = max(m.top, r.Sequence)
		m.records[key] = r
	}
}

func (m *stateModel) remove(t *rapid.T) {
	key := rapid.SampledFrom(m.keys).Draw(t, "key")
	m.state.Store(key, published.Record{}, 0)
	delete(m.records, key)
}

// load loads messages, while workers store others.
func (m *stateModel) load(t *rapid.T) {
	read := map[wire.Key]wire.Message{}
	for _, key := range m.keys {
		if rapid.Bool().Draw(t, "held") {
			m.top++
			read[key] = m.drawMessage(t, m.top)
		}
	}
	since := m.state.BeginLoad()
	m.records = map[wire.Key]published.Record{}
	for key, r := range read {
		m.records[key] = published.RecordOf(r, "one")
	}
	if m.state.Loaded() && rapid.Bool().Draw(t, "store meanwhile") {
		key := rapid.SampledFrom(m.keys).Draw(t, "key")
		m.top++
		m.records[key] = published.RecordOf(m.drawMessage(t, m.top), "one")
		m.state.Store(key, m.records[key], m.top-1)
	}
	m.state.EndLoad(since, read, "one", 1)
	m.state.SetPending(nil)
}

// What State sums up at each change is what a walk over all records finds.
func TestState_TotalsAgreeWithWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &stateModel{records: map[wire.Key]published.Record{}, keys: []wire.Key{
			podKey("a"), podKey("b"), podKey("c"), wire.SnapshotMarker(), {Resource: "configmaps", Namespace: "n", Name: "c"},
		}}
		m.load(t)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				m.load(t)
			case 1:
				m.state.Forget()
				if _, _, known := m.state.Inventory(nil); known {
					t.Fatal("an inventory of a State that was forgotten")
				}
				m.load(t)
			case 2, 3, 4:
				m.remove(t)
			default:
				m.store(t)
			}
			except := rapid.SliceOfN(rapid.SampledFrom(m.keys), 0, 3).Draw(t, "except")
			want, wantUpTo := walkInventory(m.records, except)
			if got, upTo, known := m.state.Inventory(except); got != want || upTo != wantUpTo || !known {
				t.Fatalf("inventory %+v up to %d, known %v; want %+v up to %d", got, upTo, known, want, wantUpTo)
			}
			at := rapid.Uint64Range(0, m.top+1).Draw(t, "at")
			wantBehind, wantOldest := walkProgress(m.records, at)
			if behind, oldest, known := m.state.Progress(at); behind != wantBehind || !oldest.Equal(wantOldest) || !known {
				t.Fatalf("%d behind %d since %v, known %v; want %d since %v", behind, at, oldest, known, wantBehind, wantOldest)
			}
		}
	})
}

// BenchmarkBeat measures what a heartbeat asks of State, for a node that has everything, by the number of its objects; walk
// computes the same from all records.
func BenchmarkBeat(b *testing.B) {
	for _, objects := range []int{50, 250} {
		held, records := map[wire.Key]wire.Message{}, map[wire.Key]published.Record{}
		for i := range objects {
			m := message(wire.Apply, fmt.Sprint(1000000+i), uint64(i+1))
			m.UID = fmt.Sprintf("2d9b7c1e-5a43-4e0f-9f0b-%012d", i)
			key := podKey(fmt.Sprintf("deployment-%d-7c9f6bd5d4-x2k8q", i))
			held[key], records[key] = m, published.RecordOf(m, "one")
		}
		var s published.State
		load(&s, held)
		s.SetPending(nil)
		cursor := uint64(objects)
		b.Run(fmt.Sprintf("objects=%d/walk", objects), func(b *testing.B) {
			for b.Loop() {
				walkInventory(records, nil)
				walkProgress(records, cursor)
			}
		})
		b.Run(fmt.Sprintf("objects=%d/totals", objects), func(b *testing.B) {
			for b.Loop() {
				if _, _, known := s.Inventory(nil); !known {
					b.Fatal("not known")
				}
				s.Progress(cursor)
			}
		})
	}
}
