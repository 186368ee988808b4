package seal_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/leaf/store/seal"
)

func loadRing(t *testing.T, path string) *seal.Ring {
	t.Helper()
	r, err := seal.Load(path, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sealText(t *testing.T, r *seal.Ring, name, plain string) []byte {
	t.Helper()
	data, err := r.Seal(name, []byte(plain))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// wantOpens checks the content of an envelope.
func wantOpens(t *testing.T, r *seal.Ring, name string, data []byte, want string, wantCurrent bool) {
	t.Helper()
	plain, current, err := r.Open(name, data)
	if err != nil || string(plain) != want || current != wantCurrent {
		t.Errorf("opened %q, current %v, %v; want %q, %v", plain, current, err, want, wantCurrent)
	}
}

func TestRing_OpensByNameOnly(t *testing.T) {
	r := loadRing(t, filepath.Join(t.TempDir(), "store.key"))
	data := sealText(t, r, "a", "hidden")
	wantOpens(t, r, "a", data, "hidden", true)
	if bytes.Equal(data, sealText(t, r, "a", "hidden")) {
		t.Error("the same text gives the same envelope")
	}
	broken := bytes.Replace(data, []byte(`"data":"`), []byte(`"data":"AAAA`), 1)
	for name, try := range map[string]struct {
		name string
		data []byte
	}{
		"another name": {"b", data}, "damaged": {"a", broken}, "no envelope": {"a", []byte("hidden")},
		"too short": {"a", []byte(`{"sealed":"xchacha20poly1305","key":"","data":"AA=="}`)}, "another way": {"a", []byte(`{"sealed":"rot13"}`)},
	} {
		if plain, _, err := r.Open(try.name, try.data); err == nil {
			t.Errorf("%s: opened %q", name, plain)
		}
	}
}

func TestLoad_ReusesKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.key")
	data := sealText(t, loadRing(t, path), "a", "hidden")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	wantOpens(t, loadRing(t, path), "a", data, "hidden", true)
	if err := os.Chmod(path, 0o644); err != nil { //nolint:gosec // that is what is tested
		t.Fatal(err)
	}
	wantOpens(t, loadRing(t, path), "a", data, "hidden", true)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, after others could read it", info.Mode(), err)
	}
}

// An operator adds a key before the others, as documented, and removes the others later.
func TestRing_KeysRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.key")
	data := sealText(t, loadRing(t, path), "a", "hidden")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	line := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, seal.KeySize)) + "\n"
	writeFile(t, path, line+string(old))
	both := loadRing(t, path)
	wantOpens(t, both, "a", data, "hidden", false)
	again := sealText(t, both, "a", "hidden")
	writeFile(t, path, line)
	wantOpens(t, loadRing(t, path), "a", again, "hidden", true)
	if _, _, err := loadRing(t, path).Open("a", data); !errors.Is(err, seal.ErrKey) {
		t.Errorf("error %v without the old key, want %v", err, seal.ErrKey)
	}
}

// A gateway must start even if its disk has damaged the key file; the damaged file is kept.
func TestLoad_DamagedKeyIsPutAside(t *testing.T) {
	for name, damage := range map[string]func([]byte) []byte{
		"a bit":   func(b []byte) []byte { b[30] ^= 1; return b },
		"its end": func(b []byte) []byte { return b[:40] },
		"all":     func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.key")
			data := sealText(t, loadRing(t, path), "a", "hidden")
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := damage(bytes.Clone(file))
			writeFile(t, path, string(damaged))
			if plain, _, err := loadRing(t, path).Open("a", data); !errors.Is(err, seal.ErrKey) {
				t.Errorf("%q, %v; want %v", plain, err, seal.ErrKey)
			}
			if kept, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(kept, damaged) {
				t.Errorf("put aside: %q, %v", kept, err)
			}
		})
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A line that the disk or an editor has damaged costs only that key, and the file stays unchanged.
func TestLoad_BadLineCostsOneKey(t *testing.T) {
	for name, text := range map[string]string{
		"a blank line":  "\n%s\n\n",
		"an empty end":  "%s  \r\n \t\n",
		"a bad line":    "0123456789abcdef AAAA\n%s",
		"a cut off end": "%s0123456789abcdef AAA",
		"a remark":      "# the key of 2026, by hand\n%s",
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "store.key")
			data := sealText(t, loadRing(t, path), "a", "hidden")
			file, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf(text, file)
			writeFile(t, path, text)
			wantOpens(t, loadRing(t, path), "a", data, "hidden", true)
			if kept, err := os.ReadFile(path); err != nil || string(kept) != text {
				t.Errorf("the file is %q now, %v", kept, err)
			}
		})
	}
}

// A damaged file that was put aside is not overwritten by the next: an operator may be able to repair it.
func TestLoad_KeepsAllDamagedFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.key")
	for _, text := range []string{"first", "second", "third"} {
		writeFile(t, path, text)
		loadRing(t, path)
	}
	for suffix, text := range map[string]string{".damaged": "first", ".damaged.1": "second", ".damaged.2": "third"} {
		if kept, err := os.ReadFile(path + suffix); err != nil || string(kept) != text {
			t.Errorf("%s: %q, %v", suffix, kept, err)
		}
	}
}
