package recordstore_test

import (
	"fmt"
	"maps"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/edged/devices/recordstore"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// Records are stored however many there are: one by one, in a batch, and in several.
func TestStore_SavesAndLoads(t *testing.T) {
	nc := leaftest.StartLeaf(t, leaf.Config{}).Client()
	s, err := recordstore.Open(t.Context(), recordstore.Twins(), nc, zaptest.NewLogger(t))
	kit.Must(t, err)
	want := map[string][]byte{}
	for round, count := range []int{3, 16, 17, 1200} {
		change := map[string][]byte{}
		for i := range count {
			change[fmt.Sprintf("default/d.%d", i)] = fmt.Appendf(nil, "%d of round %d", i, round)
		}
		kit.Must(t, s.Save(t.Context(), change))
		maps.Copy(want, change)
		got, err := s.Load(t.Context())
		kit.Must(t, err)
		if !maps.EqualFunc(got, want, func(a, b []byte) bool { return string(a) == string(b) }) {
			t.Fatalf("after %d records: %d are there, want %d", count, len(got), len(want))
		}
	}
	removed := map[string][]byte{}
	for key := range want {
		removed[key] = nil
	}
	kit.Must(t, s.Save(t.Context(), removed))
	if got, err := s.Load(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("%d records are left, %v", len(got), err)
	}
}

// A batch that the stream refuses is an error, and leaves nothing of itself.
func TestStore_RefusedBatchLeavesNothing(t *testing.T) {
	nc := leaftest.StartLeaf(t, leaf.Config{}).Client()
	kind := recordstore.Overrides()
	kind.MaxBytes = 64 << 10
	s, err := recordstore.Open(t.Context(), kind, nc, zaptest.NewLogger(t))
	kit.Must(t, err)
	change := map[string][]byte{}
	for i := range 100 {
		change[fmt.Sprint(i)] = make([]byte, 1<<10)
	}
	if err := s.Save(t.Context(), change); err == nil {
		t.Error("more than the stream takes is stored")
	}
	if got, err := s.Load(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("%d records of the batch are there, %v", len(got), err)
	}
	kit.Must(t, s.Save(t.Context(), map[string][]byte{"a": []byte("1")}))
}
