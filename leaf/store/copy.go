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
	Check    []byte    `json:"check"`
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
	s.mu.RLock()
	head := copyHead{Saved: time.Now().UTC().Truncate(time.Second), Revision: s.revision, Cursor: s.cursor}
	records := make([]*record, 0, len(s.records))
	for _, r := range s.records {
		if r.kept() {
			records = append(records, r)
		}
	}
	s.mu.RUnlock()
	if s.doubt || head.Revision == s.copied || head.Cursor.StreamEpoch == "" { // a damaged store is nobody's copy
		return nil
	}
	if s.cfg.Refuse != nil {
		if err := s.cfg.Refuse(); err != nil {
			return fmt.Errorf("save the copy: %w: %w", ErrFull, err)
		}
	}
	n, err := writeCopy(s.cfg.Copy, head, records)
	if err != nil {
		return fmt.Errorf("save the copy: %w", err)
	}
	s.copied = head.Revision
	s.metrics.copied.Set(float64(head.Saved.Unix()))
	s.metrics.copyBytes.Add(float64(n))
	return nil
}

func writeCopy(path string, head copyHead, records []*record) (size int64, err error) {
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
		if err == nil {
			err = lines.Encode(copyRecord{
				Key: r.Key.String(), State: r.state, UID: r.UID, Version: r.Version, Cluster: r.ClusterEpoch, Stream: r.epoch,
				Floor: r.floor, Desired: r.desired, LastGood: r.LastGood, Object: r.Object, Check: r.check[:],
			})
		}
	}
	if err := errors.Join(err, z.Close()); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), f.CloseAtomicallyReplace()
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

// readCopy returns the copy's head and those of its records that are as they were written; nil without a copy. Without a stream
// epoch the head's cursor is not to be used.
func (s *Store) readCopy() (copyHead, map[wire.Key]*record) {
	f, err := os.Open(s.cfg.Copy)
	if err != nil {
		if s.cfg.Copy != "" {
			s.log.Warn("no copy of the store to restore from", zap.Error(err))
		}
		return copyHead{}, nil
	}
	defer func() { _ = f.Close() }() // only read
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(copyLine))
	if err != nil {
		s.log.Error("copy of the store not read", zap.Error(err))
		return copyHead{}, nil
	}
	defer z.Close()
	lines := json.NewDecoder(z)
	var head copyHead
	records := map[wire.Key]*record{}
	err = lines.Decode(&head)
	for err == nil {
		var c copyRecord
		if err = lines.Decode(&c); err != nil {
			break
		}
		if r := c.record(); r != nil {
			records[r.Key] = r
		}
	}
	if !errors.Is(err, io.EOF) {
		s.log.Warn("copy of the store is damaged, taking what comes before", zap.Int("records", len(records)), zap.Error(err))
		head.Cursor.StreamEpoch = "" // each record has a checksum of its own, but not the head
	}
	return head, records
}

// record undoes writeCopy; nil for one that is not as it was written.
func (c *copyRecord) record() *record {
	key, err := wire.ParseKey(c.Key)
	if err != nil {
		return nil
	}
	r := &record{
		Entry: Entry{Key: key, UID: c.UID, Version: c.Version, ClusterEpoch: c.Cluster, LastGood: c.LastGood, Object: c.Object},
		state: c.State, desired: c.Desired, floor: c.Floor, epoch: c.Stream,
	}
	r.Sequence = r.sequence()
	r.seal()
	if string(r.check[:]) != string(c.Check) || !r.kept() {
		return nil
	}
	return r
}
