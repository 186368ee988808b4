package powercut

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// page is what a disk writes as a whole.
const page = 4096

// disk holds every byte twice: as programs see it, and as it is on the medium.
type disk struct {
	mu      sync.Mutex // guards all below, and all fields of its files and folders
	root    *folder
	journal []func() // changes of names that are not on the medium yet, in order
	syncs   int
	off     bool // the power is gone
}

// file is a file's bytes.
type file struct {
	seen, held []byte // held: on the medium
	lo, hi     int    // the part of seen that was written since the last sync
	size       bool   // its length was changed since the last sync
}

// folder is a folder on the medium; what programs see is the mount's own tree.
type folder struct {
	folders map[string]*folder
	files   map[string]*file
}

func newFolder() *folder { return &folder{folders: map[string]*folder{}, files: map[string]*file{}} }

// The methods below are called with the disk's lock held.

func (d *disk) later(change func()) { d.journal = append(d.journal, change) }

// commit puts all names onto the medium.
func (d *disk) commit() {
	d.syncs++
	for _, change := range d.journal {
		change()
	}
	d.journal = d.journal[:0]
}

func (f *file) resize(n int) {
	f.size = true
	if n <= len(f.seen) {
		f.seen = f.seen[:n]
		f.hi = min(f.hi, n)
		return
	}
	f.touch(len(f.seen), n)
	f.seen = append(f.seen, make([]byte, n-len(f.seen))...)
}

func (f *file) touch(lo, hi int) {
	if f.lo >= f.hi {
		f.lo, f.hi = lo, hi
		return
	}
	f.lo, f.hi = min(f.lo, lo), max(f.hi, hi)
}

func (f *file) write(data []byte, off int) {
	if end := off + len(data); end > len(f.seen) {
		f.resize(end)
	}
	copy(f.seen[off:], data)
	f.touch(off, off+len(data))
}

// sync puts the file's bytes onto the medium.
func (f *file) sync() {
	if n := len(f.seen); n <= len(f.held) {
		f.held = f.held[:n]
	} else {
		f.held = append(f.held, f.seen[len(f.held):]...)
	}
	if f.lo < f.hi {
		copy(f.held[f.lo:], f.seen[f.lo:f.hi])
	}
	f.lo, f.hi, f.size = 0, 0, false
}

// sync puts all that names lead to onto the medium.
func (f *folder) sync() {
	for _, file := range f.files {
		file.sync()
	}
	for _, folder := range f.folders {
		folder.sync()
	}
}

// cut returns the bytes after a power cut: each page that was written and not synced may be on the medium or not, and so
// may the new length.
func (f *file) cut(chance func() bool) []byte {
	if f.lo >= f.hi && !f.size {
		return f.held
	}
	n := len(f.held)
	if f.size && chance() {
		n = len(f.seen)
	}
	out := make([]byte, n)
	copy(out, f.held)
	for at := f.lo - f.lo%page; at < f.hi && at < n; at += page {
		if chance() {
			copy(out[at:min(at+page, n)], f.seen[min(at, len(f.seen)):])
		}
	}
	return out
}

// image writes what the medium holds into a folder. Chance decides what of the unsynced is among it; with none, nothing.
func (d *disk) image(to string, chance *rand.Rand) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	luck := func() bool { return chance != nil && chance.IntN(2) == 0 }
	if chance != nil && len(d.journal) > 0 {
		n := chance.IntN(len(d.journal) + 1)
		for _, change := range d.journal[:n] {
			change()
		}
		d.journal = slices.Clone(d.journal[n:])
	}
	return d.root.image(to, luck)
}

func (f *folder) image(to string, chance func() bool) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		if err := os.WriteFile(filepath.Join(to, name), f.files[name].cut(chance), 0o600); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.folders)) {
		if err := f.folders[name].image(filepath.Join(to, name), chance); err != nil {
			return err
		}
	}
	return nil
}
