package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
)

const (
	copyMode = 0o600
	// copyLine bounds one record when a copy is read: an object of 4 MiB, as base64, and its names.
	copyLine = 8 << 20
)

// copyHead is the first line of a copy.
type copyHead struct {
	Saved    time.Time   `json:"saved"`
	Revision uint64      `json:"revision"`
	Cursor   wire.Cursor `json:"cursor"`
	// Sole says that the bucket is being made anew from this file, so that it alone counts.
	Sole bool `json:"sole,omitempty"`
}

// copyRecord is each other line. Its checksum is that of the bucket's record.
type copyRecord struct {
	Key      string    `json:"key"`
	State    state     `json:"state"`
	UID      string    `json:"uid,omitempty"`
	Version  string    `json:"version,omitempty"`
	Cluster  string    `json:"cluster,omitempty"`
	Stream   string    `json:"stream,omitempty"`
	Floor    uint64    `json:"floor,omitempty"`
	Desired  bool      `json:"desired,omitempty"`
	LastGood time.Time `json:"lastGood,omitzero"`
	Object   []byte    `json:"object,omitempty"`
	// Sealed takes the place of Object.
	Sealed json.RawMessage `json:"sealed,omitempty"`
	Check  []byte          `json:"check"`
}

// SaveCopy writes all records to Config.Copy, compressed and synced, unless nothing has changed since this process did so
// last. A copy replaces the one before as a whole. Writers wait for it; readers do not.
func (s *Store) SaveCopy(ctx context.Context) error {
	if s.cfg.Copy == "" {
		return nil
	}
	if err := acquire(ctx, s.writer); err != nil {
		return fmt.Errorf("save the copy: %w", err)
	}
	defer release(s.writer)
	head, records := s.snapshot((*record).kept)
	if s.doubt || head.Revision == s.copied || head.Cursor.StreamEpoch == "" { // a damaged store is nobody's copy
		return nil
	}
	if s.cfg.Refuse != nil {
		if err := s.cfg.Refuse(); err != nil {
			return fmt.Errorf("save the copy: %w: %w", ErrFull, err)
		}
	}
	n, err := s.writeCopy(head, records)
	if err != nil {
		return fmt.Errorf("save the copy: %w", err)
	}
	s.copied = head.Revision
	s.metrics.copied.Set(float64(head.Saved.Unix()))
	s.metrics.copyBytes.Add(float64(n))
	return nil
}

// snapshot returns those records that a copy is to hold.
func (s *Store) snapshot(holds func(*record) bool) (copyHead, []*record) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	head := copyHead{Saved: time.Now().UTC().Truncate(time.Second), Revision: s.revision, Cursor: s.cursor}
	records := make([]*record, 0, len(s.records))
	for _, r := range s.records {
		if holds(r) {
			records = append(records, r)
		}
	}
	return head, records
}

// writeCopy replaces the copy, durably. After an error either copy may be in place.
func (s *Store) writeCopy(head copyHead, records []*record) (size int64, err error) {
	path := s.cfg.Copy
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(copyMode))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Cleanup() }() // does nothing after the file has taken its place
	z, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return 0, err
	}
	lines := json.NewEncoder(z)
	err = lines.Encode(head)
	for _, r := range records {
		var line copyRecord
		if err == nil {
			line, err = s.line(r)
		}
		if err == nil {
			err = lines.Encode(line)
		}
	}
	if err := errors.Join(err, z.Close()); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return 0, err
	}
	return info.Size(), syncFolder(filepath.Dir(path)) // else a power cut may bring back the copy before
}

// dropCopy removes the copy, durably, so that it is never used again. The caller holds writer.
func (s *Store) dropCopy() {
	s.copied = 0
	if s.cfg.Copy == "" {
		return
	}
	err := os.Remove(s.cfg.Copy)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = syncFolder(filepath.Dir(s.cfg.Copy))
	}
	if err != nil {
		s.log.Error("old copy of the store not removed", zap.Error(err))
	}
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// cleanCopies removes what copies left behind that a kill ended midway: renameio's files, "." and the name and a number.
func (s *Store) cleanCopies() {
	if s.cfg.Copy == "" {
		return
	}
	folder, name := filepath.Split(s.cfg.Copy)
	files, err := os.ReadDir(filepath.Clean(folder))
	for _, f := range files {
		number, ok := strings.CutPrefix(f.Name(), "."+name)
		if _, no := strconv.ParseUint(number, 10, 64); ok && no == nil && f.Type().IsRegular() {
			err = errors.Join(err, os.Remove(filepath.Join(folder, f.Name())))
		}
	}
	if err != nil {
		s.log.Warn("unfinished copies of the store not removed", zap.Error(err))
	}
}

// openCopy starts to read the copy. Whoever called it calls close, also after an error.
func (s *Store) openCopy() (lines *json.Decoder, head copyHead, end func(), err error) {
	f, err := os.Open(s.cfg.Copy)
	if err != nil {
		return nil, head, func() {}, err
	}
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(copyLine))
	if err != nil {
		return nil, head, func() { _ = f.Close() }, err // only read
	}
	lines = json.NewDecoder(z)
	err = lines.Decode(&head)
	return lines, head, func() { z.Close(); _ = f.Close() }, err
}

// soleCopy reports whether the copy was written to make the bucket anew from it.
func (s *Store) soleCopy() bool {
	_, head, end, err := s.openCopy()
	end()
	return err == nil && head.Sole
}

// readCopy returns the copy's head and those of its records that are as they were written; nil without a copy. Without a stream
// epoch the head's cursor is not to be used; it is Sole only if the copy is whole.
func (s *Store) readCopy() (copyHead, map[wire.Key]*record) {
	lines, head, end, err := s.openCopy()
	defer end()
	if lines == nil {
		if s.cfg.Copy != "" {
			s.log.Warn("no copy of the store to restore from", zap.Error(err))
		}
		return copyHead{}, nil
	}
	records := map[wire.Key]*record{}
	for err == nil {
		var c copyRecord
		if err = lines.Decode(&c); err != nil {
			break
		}
		if r := s.unline(&c); r != nil && (r.kept() || head.Sole) {
			records[r.Key] = r
		} else {
			head.Sole = false
		}
	}
	if !errors.Is(err, io.EOF) {
		s.log.Warn("copy of the store is damaged, taking what comes before", zap.Int("records", len(records)), zap.Error(err))
		head.Cursor.StreamEpoch, head.Sole = "", false // each record has a checksum of its own, but not the head
	}
	return head, records
}

// line is a record as a copy holds it.
func (s *Store) line(r *record) (copyRecord, error) {
	c := copyRecord{
		Key: r.Key.String(), State: r.state, UID: r.UID, Version: r.Version, Cluster: r.ClusterEpoch, Stream: r.epoch,
		Floor: r.floor, Desired: r.desired, LastGood: r.LastGood, Check: r.check[:],
	}
	if r.state != live || r.salt == nil && !s.hides(r.Key) {
		c.Object = r.Object
		return c, nil
	}
	sealed, err := s.sealed(r)
	c.Sealed = sealed
	return c, err
}

// unline undoes line; nil for a record that is not as it was written.
func (s *Store) unline(c *copyRecord) *record {
	key, err := wire.ParseKey(c.Key)
	if err != nil {
		return nil
	}
	r := &record{
		Entry: Entry{Key: key, UID: c.UID, Version: c.Version, ClusterEpoch: c.Cluster, LastGood: c.LastGood},
		state: c.State, desired: c.Desired, floor: c.Floor, epoch: c.Stream,
	}
	data := c.Object
	if c.Sealed != nil {
		data = c.Sealed
	}
	if r.state == live {
		if err := s.uncover(r, c.Sealed != nil, data); err != nil {
			return nil
		}
	}
	r.Sequence = r.sequence()
	r.stamp()
	if string(r.check[:]) != string(c.Check) {
		return nil
	}
	return r
}
