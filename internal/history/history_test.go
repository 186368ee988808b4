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

func TestLinesComeBackAndATornOneIsLeftOut(t *testing.T) {
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
	got, err := history.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(lines, got, cmpopts.IgnoreFields(history.Line{}, "Time")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
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
