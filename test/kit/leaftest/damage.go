package leaftest

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Damage is one kind of damage that a bad disk does to a file.
type Damage struct {
	Name string
	// Mutate changes the file's bytes; it returns nil for a file that is to be deleted.
	Mutate func(data []byte) []byte
}

// Damages returns cuts, flipped bits and torn pages at each kind of place in a file, and its loss.
func Damages() []Damage {
	list := []Damage{
		{"missing", func([]byte) []byte { return nil }},
		{"empty", func([]byte) []byte { return []byte{} }},
		{"last-byte-cut", func(d []byte) []byte { return d[:max(0, len(d)-1)] }},
		{"last-100-cut", func(d []byte) []byte { return d[:max(0, len(d)-100)] }},
		{"half", func(d []byte) []byte { return d[:len(d)/2] }},
		{"first-100-left", func(d []byte) []byte { return d[:min(100, len(d))] }},
		{"zeros-after", func(d []byte) []byte { return append(d, make([]byte, 4096)...) }},
		{"zeroed", func(d []byte) []byte { clear(d); return d }},
		{"last-page-zeroed", func(d []byte) []byte { clear(d[len(d)-len(d)%4096:]); return d }},
		{"first-page-zeroed", func(d []byte) []byte { clear(d[:min(4096, len(d))]); return d }},
	}
	const places = 6
	for i := range places {
		list = append(list, Damage{"bit-" + string(rune('a'+i)), func(d []byte) []byte {
			if len(d) > 0 {
				d[(len(d)-1)*i/(places-1)] ^= 0x10
			}
			return d
		}})
	}
	return list
}

// Apply damages a file.
func (d Damage) Apply(tb testing.TB, path string) {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	if data = d.Mutate(data); data == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// Files lists the files below a folder, by their relative names.
func Files(tb testing.TB, dir string) []string {
	tb.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, relErr := filepath.Rel(dir, path)
			list, err = append(list, rel), relErr
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return list
}
