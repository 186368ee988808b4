package published_test

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// TestState_KeepsEachRecord: a record is read as it was stored, whatever its texts look like.
func TestState_KeepsEachRecord(t *testing.T) {
	texts := []string{
		"", "0", "7", "007", "+7", "-1", "18446744073709551615", "18446744073709551616", "x",
		"2d9b7c1e-5a43-4e0f-9f0b-0123456789ab", "2D9B7C1E-5a43-4e0f-9f0b-0123456789ab", "2d9b7c1e+5a43-4e0f-9f0b-0123456789ab", "2d9b7c1e-5a43-4e0f-9f0b-0123456789ag",
		"00000000-0000-0000-0000-000000000000", "3f4c1a7d5b0e2c9f8a6d4b3e1f0c9d8a", "3F4C1a7d5b0e2c9f8a6d4b3e1f0c9d8a", "zz4c1a7d5b0e2c9f8a6d4b3e1f0c9d8a", "00000000000000000000000000000000",
	}
	times := []time.Time{{}, time.Unix(0, 0), time.Unix(1_700_000_000, 123_456_789), time.Date(2500, 1, 1, 0, 0, 0, 0, time.UTC), time.Now()}
	reasons := []wire.DeletionReason{"", wire.DeletionTerminating, wire.DeletionPodEnded, wire.DeletionWithoutGrace, wire.DeletionOfCopy, wire.DeletionConfirmed("word"), "new"}
	keys := []wire.Key{
		podKey("a"), podKey("b"),
		{Group: "apps", Resource: "pods", Namespace: "n", Name: "a"},
		{Resource: "nodes", Name: "a"},
		wire.Scope{Resource: "pods", Namespace: "n"}.Marker(), wire.SnapshotMarker(),
	}
	rapid.Check(t, func(t *rapid.T) {
		var s published.State
		load(&s, nil)
		model := map[wire.Key]published.Record{}
		for sequence := range uint64(rapid.IntRange(1, 20).Draw(t, "steps")) {
			key := rapid.SampledFrom(keys).Draw(t, "key")
			m := wire.Message{
				Op: rapid.SampledFrom([]wire.Operation{wire.Apply, wire.Delete}).Draw(t, "op"), Sequence: sequence + 1,
				UID: rapid.SampledFrom(texts).Draw(t, "uid"), Digest: rapid.SampledFrom(texts).Draw(t, "digest"),
				Version: rapid.SampledFrom(texts).Draw(t, "version"), Acked: rapid.SampledFrom(texts).Draw(t, "acked"),
				DeletionReason: rapid.SampledFrom(reasons).Draw(t, "reason"), Time: rapid.SampledFrom(times).Draw(t, "time"),
				ClusterEpoch: rapid.SampledFrom([]string{"one", "two"}).Draw(t, "epoch"),
			}
			model[key] = published.RecordOf(m, "one")
			if rapid.IntRange(0, 5).Draw(t, "empty") == 0 {
				model[key] = published.Record{}
			}
			if !s.Store(key, model[key], 0) {
				t.Fatal("not stored")
			}
			for _, key := range keys {
				view, _ := s.View(key)
				if diff := cmp.Diff(model[key], view.Record, cmp.AllowUnexported(published.Record{})); diff != "" {
					t.Fatalf("%s (-want +got):\n%s", key.Human(), diff)
				}
			}
			want := slices.Collect(maps.Keys(model))
			want = slices.DeleteFunc(want, func(key wire.Key) bool {
				return model[key].Sequence == 0 || model[key].Deleted || key.Resource != "pods" || key.Group != ""
			})
			got := s.Covered(wire.Scope{Resource: "pods"})
			if diff := cmp.Diff(want, got, cmpopts.SortSlices(wire.Key.Compare), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("pods (-want +got):\n%s", diff)
			}
		}
	})
}

// A tombstone's age must not change when the clock of the machine is set: its time keeps what time.Since needs for that.
func TestState_TombstoneKeepsMonotonicTime(t *testing.T) {
	var s published.State
	load(&s, nil)
	made := time.Now()
	m := message(wire.Delete, "1", 1)
	m.Time = made
	s.Store(podKey("a"), published.RecordOf(m, "one"), 0)
	if view, _ := s.View(podKey("a")); view.Record.MadeAt != made { // != compares the monotonic reading, too
		t.Errorf("%v became %v", made, view.Record.MadeAt)
	}
}

// BenchmarkState measures the memory of an object in what the stream holds for a node, of 50 objects each, and the time to
// load a node and to read one record.
func BenchmarkState(b *testing.B) {
	const nodes, objects = 400, 50
	read := make([]map[wire.Key]wire.Message, nodes)
	for n := range nodes {
		read[n] = map[wire.Key]wire.Message{}
		for i := range objects {
			resource := []string{"pods", "configmaps", "secrets", "serviceaccounts", "services"}[i%5]
			key := wire.Key{Resource: resource, Namespace: fmt.Sprint("ns-", n%100), Name: fmt.Sprintf("web-7c9f6bd5d4-%03d-%02d", n, i)}
			read[n][key] = wire.Message{
				Op: wire.Apply, Sequence: uint64(n*objects + i + 1), UID: fmt.Sprintf("2d9b7c1e-5a43-4e0f-9f0b-%012d", n*objects+i), Version: fmt.Sprint(1_000_000 + i),
				Digest: fmt.Sprintf("%032d", i), Acked: fmt.Sprint(900_000 + i), ClusterEpoch: "one", Time: time.Unix(1_700_000_000+int64(i), 5),
			}
		}
	}
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			before := heapBytes()
			states := make([]published.State, nodes)
			for n := range states {
				load(&states[n], copyTexts(read[n]))
				states[n].SetPending(nil) // as after the first publication
			}
			b.ReportMetric(float64(heapBytes()-before)/nodes/objects, "B/object")
			runtime.KeepAlive(states)
		}
	})
	b.Run("view", func(b *testing.B) {
		var s published.State
		load(&s, read[0])
		keys := slices.Collect(maps.Keys(read[0]))
		i := 0
		for b.Loop() {
			s.View(keys[i%objects])
			i++
		}
	})
}

// copyTexts returns messages whose texts are their own, as those are that a replica reads.
func copyTexts(read map[wire.Key]wire.Message) map[wire.Key]wire.Message {
	copied := make(map[wire.Key]wire.Message, len(read))
	for key, m := range read {
		own := func(text string) string { return string([]byte(text)) }
		key = wire.Key{Group: own(key.Group), Resource: own(key.Resource), Namespace: own(key.Namespace), Name: own(key.Name)}
		m.UID, m.Version, m.Digest, m.Acked = own(m.UID), own(m.Version), own(m.Digest), own(m.Acked)
		copied[key] = m
	}
	return copied
}

func heapBytes() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
