package journal_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/journal"
	"github.com/frond-edge/frond/test/kit"
)

func newMark() journal.Mark {
	return journal.Mark{
		Revision: 1234, Sum: 17579016226110390161, Names: 9871342015512,
		Cursor: wire.Cursor{StoreEpoch: "2f7c4b0e-52cb-4a3e-9c1d-6a8b1f3c9d20", StreamEpoch: "20261103T101530.123456789Z", Sequence: 998},
	}
}

func newMarkFile(t *testing.T) (f *journal.MarkFile, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "store.mark")
	f = journal.NewMarkFile(path, zaptest.NewLogger(t))
	t.Cleanup(func() { kit.Must(t, f.Close()) })
	return f, path
}

func wantMark(t *testing.T, f *journal.MarkFile, want journal.Mark) {
	t.Helper()
	if got := f.Read(want.Cursor.StoreEpoch); got == nil || *got != want {
		t.Errorf("mark %+v, want %+v", got, want)
	}
}

// Each Save is visible to other readers at once, also after Close, and the file keeps its length.
func TestMarkFile_SaveAndRead(t *testing.T) {
	f, path := newMarkFile(t)
	if m := f.Read(""); m != nil {
		t.Errorf("mark %+v of no file", m)
	}
	m := newMark()
	for range 3 {
		m.Revision++
		m.Cursor.Sequence++
		f.Save(m)
		wantMark(t, journal.NewMarkFile(path, zaptest.NewLogger(t)), m)
		if info, err := os.Stat(path); err != nil || info.Size() != 512 {
			t.Errorf("file %+v, %v; want 512 bytes", info, err)
		}
	}
	kit.Must(t, f.Close())
	m.Cursor = wire.Cursor{StoreEpoch: "e"} // shorter than the one that it overwrites
	f.Save(m)
	wantMark(t, f, m)
	if other := f.Read("another"); other != nil {
		t.Errorf("mark of another store: %+v", other)
	}
	if got := f.Read(""); got == nil || *got != m {
		t.Errorf("mark %+v, want %+v", got, m)
	}
}

// A mark that is damaged anywhere, or torn between two marks, proves nothing.
func TestMarkFile_DamagedProvesNothing(t *testing.T) {
	f, path := newMarkFile(t)
	f.Save(newMark())
	whole, err := os.ReadFile(path)
	kit.Must(t, err)
	next := newMark()
	next.Revision, next.Sum = 1235, 7
	f.Save(next)
	newer, err := os.ReadFile(path)
	kit.Must(t, err)
	damaged := map[string][]byte{"empty": nil, "zeros": make([]byte, len(whole)), "short": whole[:300], "torn": append(bytes.Clone(newer[:20]), whole[20:]...)}
	for i := range whole {
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1
		damaged[fmt.Sprint("byte ", i)] = flipped
	}
	for name, data := range damaged {
		kit.Must(t, os.WriteFile(path, data, 0o600))
		if m := f.Read(""); m != nil {
			t.Errorf("%s: mark %+v", name, m)
		}
	}
}

// A mark that an older version wrote is read, and then overwritten as a whole.
func TestMarkFile_ReadsOldForm(t *testing.T) {
	f, path := newMarkFile(t)
	const old = `{"revision":1234,"sum":17579016226110390161,"names":9871342015512,"cursor":{"storeEpoch":"2f7c4b0e-52cb-4a3e-9c1d-6a8b1f3c9d20",` +
		`"streamEpoch":"20261103T101530.123456789Z","sequence":998},"check":"3564f81db9a765020546c72b181da564"}`
	kit.Must(t, os.WriteFile(path, fmt.Appendf(nil, "%-511s\n", old), 0o600))
	wantMark(t, f, newMark())
	kit.Must(t, os.WriteFile(path, fmt.Appendf(nil, "%-511s\n", strings.Replace(old, "998", "999", 1)), 0o600))
	if m := f.Read(""); m != nil {
		t.Errorf("damaged mark %+v", m)
	}
	f.Save(newMark())
	wantMark(t, f, newMark())
}

// A mark that cannot be written stays as it is: it is older than the bucket, which proves nothing. The next one is written again.
func TestMarkFile_SaveAfterFailure(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "later")
	f := journal.NewMarkFile(filepath.Join(folder, "store.mark"), zaptest.NewLogger(t))
	t.Cleanup(func() { kit.Must(t, f.Close()) })
	f.Save(newMark())
	if m := f.Read(""); m != nil {
		t.Errorf("mark %+v in no folder", m)
	}
	kit.Must(t, os.Mkdir(folder, 0o700))
	f.Save(newMark())
	wantMark(t, f, newMark())
	long := newMark()
	long.Cursor.StreamEpoch = strings.Repeat("x", 500)
	f.Save(long)
	wantMark(t, f, newMark())
}
