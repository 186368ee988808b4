// Package lastgood reads and writes the last-good copy of a store: one compressed file outside JetStream's folder, replaced as a
// whole, from which damaged records are restored. It decides nothing about what a copy proves.
package lastgood

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"github.com/klauspost/compress/zstd"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/index"
	"github.com/frond-edge/frond/leaf/store/record"
)

const (
	fileMode = 0o600
	// maxLine is the longest line that is read from a last-good copy: an object of 4 MiB in base64, and its names.
	maxLine = 8 << 20
)

// Head is the first line of a last-good copy.
type Head struct {
	Saved    time.Time   `json:"saved"`
	Revision uint64      `json:"revision"`
	Cursor   wire.Cursor `json:"cursor"`
	// Sole: the bucket is being rebuilt from this file, so that only the file counts.
	Sole bool `json:"sole,omitempty"`
}

// line is every other line of a copy. Its checksum is that of the bucket's record.
type line struct {
	Key      string       `json:"key"`
	State    record.State `json:"state"`
	UID      string       `json:"uid,omitempty"`
	Version  string       `json:"version,omitempty"`
	Cluster  string       `json:"cluster,omitempty"`
	Stream   string       `json:"stream,omitempty"`
	Floor    uint64       `json:"floor,omitempty"`
	Desired  bool         `json:"desired,omitempty"`
	LastGood time.Time    `json:"lastGood,omitzero"`
	Object   []byte       `json:"object,omitempty"`
	// Sealed replaces Object for a sealed record.
	Sealed json.RawMessage `json:"sealed,omitempty"`
	Check  []byte          `json:"check"`
}

// File is the file of a store's last-good copy. The caller of Save, Remove and Saved excludes other callers.
type File struct {
	path    string
	sealing record.Sealing
	log     *zap.Logger
	saved   uint64 // the revision of the last copy that this process wrote and has not removed
}

// New returns the file at a path, "" for none. Its folder must exist. sealing seals the secrets in it.
func New(path string, sealing record.Sealing, log *zap.Logger) *File {
	return &File{path: path, sealing: sealing, log: log}
}

// IsConfigured reports whether there is a path for a copy.
func (f *File) IsConfigured() bool { return f.path != "" }

// Saved returns the revision of the copy that this process has written, 0 for none.
func (f *File) Saved() uint64 { return f.saved }

// Collect returns the records of an index that belong in a copy.
func Collect(x *index.Index, holds func(*record.Record) bool) (Head, []*record.Record) {
	records, revision, cursor := x.Select(holds)
	return Head{Saved: time.Now().UTC().Truncate(time.Second), Revision: revision, Cursor: cursor}, records
}

// Save replaces the copy durably and returns its size. After an error the old or the new copy may be in place.
func (f *File) Save(head Head, records []*record.Record) (size int64, err error) {
	file, err := renameio.NewPendingFile(f.path, renameio.WithTempDir(filepath.Dir(f.path)), renameio.WithPermissions(fileMode))
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Cleanup() }() // does nothing after the rename
	z, err := zstd.NewWriter(file, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return 0, err
	}
	lines := json.NewEncoder(z)
	err = lines.Encode(head)
	for _, r := range records {
		var encoded line
		if err == nil {
			encoded, err = f.encodeLine(r)
		}
		if err == nil {
			err = lines.Encode(encoded)
		}
	}
	if err := errors.Join(err, z.Close()); err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if err := file.CloseAtomicallyReplace(); err != nil {
		return 0, err
	}
	if err := syncDir(filepath.Dir(f.path)); err != nil { // otherwise a power cut may bring back the previous copy
		return 0, err
	}
	if !head.Sole {
		f.saved = head.Revision
	}
	return info.Size(), nil
}

// Remove durably removes the copy, so that it is never used again.
func (f *File) Remove() {
	f.saved = 0
	if f.path == "" {
		return
	}
	err := os.Remove(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = syncDir(filepath.Dir(f.path))
	}
	if err != nil {
		f.log.Error("old copy of the store not removed", zap.Error(err))
	}
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// RemovePartial removes temporary files of copies that a kill interrupted: renameio names them ".", the name and a number.
func (f *File) RemovePartial() {
	if f.path == "" {
		return
	}
	folder, name := filepath.Split(f.path)
	files, err := os.ReadDir(filepath.Clean(folder))
	for _, file := range files {
		number, ok := strings.CutPrefix(file.Name(), "."+name)
		if _, no := strconv.ParseUint(number, 10, 64); ok && no == nil && file.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(folder, file.Name())))
		}
	}
	if err != nil {
		f.log.Warn("unfinished copies of the store not removed", zap.Error(err))
	}
}

// open opens the copy for reading. The caller calls end, also after an error.
func (f *File) open() (lines *json.Decoder, head Head, end func(), err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return nil, head, func() {}, err
	}
	z, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxLine))
	if err != nil {
		return nil, head, func() { _ = file.Close() }, err // opened only for reading
	}
	lines = json.NewDecoder(z)
	err = lines.Decode(&head)
	return lines, head, func() { z.Close(); _ = file.Close() }, err
}

// IsSole reports whether the copy was written to rebuild the bucket from it.
func (f *File) IsSole() bool {
	_, head, end, err := f.open()
	end()
	return err == nil && head.Sole
}

// Read returns the copy's head and its undamaged records; nil without a copy. Without a stream epoch the head's
// cursor must not be used. The head is Sole only if the copy is whole.
func (f *File) Read() (Head, map[wire.Key]*record.Record) {
	lines, head, end, err := f.open()
	defer end()
	if lines == nil {
		if f.path != "" {
			f.log.Warn("no copy of the store to restore from", zap.Error(err))
		}
		return Head{}, nil
	}
	records := map[wire.Key]*record.Record{}
	for err == nil {
		var c line
		if err = lines.Decode(&c); err != nil {
			break
		}
		if r := f.decodeLine(&c); r != nil && (r.IsDurable() || head.Sole) {
			records[r.Key] = r
		} else {
			head.Sole = false
		}
	}
	if !errors.Is(err, io.EOF) {
		f.log.Warn("copy of the store is damaged, taking what comes before", zap.Int("records", len(records)), zap.Error(err))
		head.Cursor.StreamEpoch, head.Sole = "", false // each record has its own checksum; the head has none
	}
	return head, records
}

// encodeLine returns the line of a copy for a record.
func (f *File) encodeLine(r *record.Record) (line, error) {
	c := line{
		Key: r.Key.String(), State: r.State, UID: r.UID, Version: r.Version, Cluster: r.ClusterEpoch, Stream: r.StreamEpoch,
		Floor: r.LastRemoteSeq, Desired: r.Desired, LastGood: r.LastGood, Check: r.Check[:],
	}
	if r.State != record.Live || r.Salt == nil && !f.sealing.IsSecret(r.Key) {
		c.Object = r.Object
		return c, nil
	}
	sealed, err := f.sealing.Seal(r)
	c.Sealed = sealed
	return c, err
}

// decodeLine reverses encodeLine; it returns nil for a damaged record.
func (f *File) decodeLine(c *line) *record.Record {
	key, err := wire.ParseKey(c.Key)
	if err != nil {
		return nil
	}
	r := &record.Record{
		Entry: record.Entry{Key: key, UID: c.UID, Version: c.Version, ClusterEpoch: c.Cluster, LastGood: c.LastGood},
		State: c.State, Desired: c.Desired, LastRemoteSeq: c.Floor, StreamEpoch: c.Stream,
	}
	data := c.Object
	if c.Sealed != nil {
		data = c.Sealed
	}
	if r.State == record.Live {
		if err := f.sealing.Unseal(r, c.Sealed != nil, data); err != nil {
			return nil
		}
	}
	r.Derive()
	if string(r.Check[:]) != string(c.Check) {
		return nil
	}
	return r
}
