package faultfs

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// pageSize is the unit in which a disk writes.
const pageSize = 4096

// disk holds every byte twice: as programs see it, and as it is on the medium.
type disk struct {
	mu         sync.Mutex // guards all below, and all fields of its files and folders
	root       *folder
	journal    []func() // changes of names that are not yet on the medium, in order
	syncs      int
	poweredOff bool // the power is gone
}

// file holds a file's bytes.
type file struct {
	visible, durable   []byte // durable: on the medium
	dirtyFrom, dirtyTo int    // the part of visible that was written since the last sync
	resized            bool   // its length changed since the last sync
}

// folder is a folder on the medium; programs see the mount's own tree.
type folder struct {
	folders map[string]*folder
	files   map[string]*file
}

func newFolder() *folder { return &folder{folders: map[string]*folder{}, files: map[string]*file{}} }

// The caller of the methods below holds the disk's lock.

func (d *disk) appendJournal(change func()) { d.journal = append(d.journal, change) }

// commitJournal applies all changes of names to the medium.
func (d *disk) commitJournal() {
	d.syncs++
	for _, change := range d.journal {
		change()
	}
	d.journal = d.journal[:0]
}

func (f *file) resize(n int) {
	f.resized = true
	if n <= len(f.visible) {
		f.visible = f.visible[:n]
		f.dirtyTo = min(f.dirtyTo, n)
		return
	}
	f.markDirty(len(f.visible), n)
	f.visible = append(f.visible, make([]byte, n-len(f.visible))...)
}

func (f *file) markDirty(lo, hi int) {
	if f.dirtyFrom >= f.dirtyTo {
		f.dirtyFrom, f.dirtyTo = lo, hi
		return
	}
	f.dirtyFrom, f.dirtyTo = min(f.dirtyFrom, lo), max(f.dirtyTo, hi)
}

func (f *file) write(data []byte, off int) {
	if end := off + len(data); end > len(f.visible) {
		f.resize(end)
	}
	copy(f.visible[off:], data)
	f.markDirty(off, off+len(data))
}

// sync copies the file's bytes to the medium.
func (f *file) sync() {
	if n := len(f.visible); n <= len(f.durable) {
		f.durable = f.durable[:n]
	} else {
		f.durable = append(f.durable, f.visible[len(f.durable):]...)
	}
	if f.dirtyFrom < f.dirtyTo {
		copy(f.durable[f.dirtyFrom:], f.visible[f.dirtyFrom:f.dirtyTo])
	}
	f.dirtyFrom, f.dirtyTo, f.resized = 0, 0, false
}

// sync syncs all files and folders below the folder.
func (f *folder) sync() {
	for _, file := range f.files {
		file.sync()
	}
	for _, folder := range f.folders {
		folder.sync()
	}
}

// bytesAfterCut returns the bytes after a power cut: each page that was written and not synced may be on the medium or not, and so may the
// new length.
func (f *file) bytesAfterCut(chance func() bool) []byte {
	if f.dirtyFrom >= f.dirtyTo && !f.resized {
		return f.durable
	}
	n := len(f.durable)
	if f.resized && chance() {
		n = len(f.visible)
	}
	out := make([]byte, n)
	copy(out, f.durable)
	for at := f.dirtyFrom - f.dirtyFrom%pageSize; at < f.dirtyTo && at < n; at += pageSize {
		if chance() {
			copy(out[at:min(at+pageSize, n)], f.visible[min(at, len(f.visible)):])
		}
	}
	return out
}

// writeImage writes the content of the medium into a folder. chance decides which unsynced bytes are included; nil includes none.
func (d *disk) writeImage(to string, chance *rand.Rand) error {
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
	return d.root.writeImage(to, luck)
}

func (f *folder) writeImage(to string, chance func() bool) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		if err := os.WriteFile(filepath.Join(to, name), f.files[name].bytesAfterCut(chance), 0o600); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.folders)) {
		if err := f.folders[name].writeImage(filepath.Join(to, name), chance); err != nil {
			return err
		}
	}
	return nil
}
