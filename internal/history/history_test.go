package history_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/history"
)

func TestRead_SkipsTornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	lines := []history.Line{
		{Op: history.Opened, Cursor: wire.Cursor{StoreEpoch: "a"}},
		{Op: history.Applied, Cursor: wire.Cursor{StoreEpoch: "a", StreamEpoch: "b", Sequence: 7}, Objects: []history.Object{
			{Key: wire.Key{Resource: "configmaps", Namespace: "n", Name: "x"}, UID: "u", Version: "12", Sequence: 7},
			{Key: wire.Key{Resource: "secrets", Namespace: "n", Name: "y"}, Gone: true},
		}},
		{Op: history.Acked, Cursor: wire.Cursor{Sequence: 7}},
	}
	for i, line := range lines {
		w, err := history.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Append(line); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 1 { // the process is killed in the middle of a line
			if err := appendTo(path, "\n{\"op\":\"acked\",\"cur"); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, end, err := history.Read(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	if more, next, err := history.Read(path, end); err != nil || len(more) != 0 || next != end {
		t.Errorf("after the end: %v, %d of %d, %v", more, next, end, err)
	}
	if diff := cmp.Diff(lines, got, cmpopts.IgnoreFields(history.Line{}, "Time")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// TestRead_ReadsPartialLineLater reads while the last line is half written.
func TestRead_ReadsPartialLineLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	if err := os.WriteFile(path, []byte("\n{\"op\":\"opened\"}\n{\"op\":\"ac"), 0o600); err != nil {
		t.Fatal(err)
	}
	first, next, err := history.Read(path, 0)
	if err != nil || len(first) != 1 {
		t.Fatalf("%v, %v", first, err)
	}
	if err := appendTo(path, "ked\"}"); err != nil {
		t.Fatal(err)
	}
	second, _, err := history.Read(path, next)
	if err != nil || len(second) != 1 || second[0].Op != history.Acked {
		t.Fatalf("%v, %v", second, err)
	}
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
