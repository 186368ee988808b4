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
	lastGoodMode = 0o600
	// maxLastGoodLine is the longest line that is read from a last-good copy: an object of 4 MiB in base64, and its names.
	maxLastGoodLine = 8 << 20
)

// lastGoodHead is the first line of a last-good copy.
type lastGoodHead struct {
	Saved    time.Time   `json:"saved"`
	Revision uint64      `json:"revision"`
	Cursor   wire.Cursor `json:"cursor"`
	// Sole: the bucket is being rebuilt from this file, so that only the file counts.
	Sole bool `json:"sole,omitempty"`
}

// lastGoodRecord is every other line of a copy. Its checksum is that of the bucket's record.
type lastGoodRecord struct {
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
	// Sealed replaces Object for a sealed record.
	Sealed json.RawMessage `json:"sealed,omitempty"`
	Check  []byte          `json:"check"`
}

// SaveLastGood writes all records to Config.LastGoodFile, compressed and synced, unless nothing has changed since this
// process last did so. A new copy replaces the previous one as a whole. Writers wait for it; readers do not.
func (s *Store) SaveLastGood(ctx context.Context) error {
	if s.cfg.LastGoodFile == "" {
		return nil
	}
	if err := acquireToken(ctx, s.writer); err != nil {
		return fmt.Errorf("save the copy: %w", err)
	}
	defer releaseToken(s.writer)
	head, records := s.collectRecords((*record).isDurable)
	if s.dirty || head.Revision == s.lastGoodRevision || head.Cursor.StreamEpoch == "" { // a damaged store is never copied
		return nil
	}
	if s.cfg.CheckWritable != nil {
		if err := s.cfg.CheckWritable(); err != nil {
			return fmt.Errorf("save the copy: %w: %w", ErrFull, err)
		}
	}
	n, err := s.writeLastGood(head, records)
	if err != nil {
		return fmt.Errorf("save the copy: %w", err)
	}
	s.lastGoodRevision = head.Revision
	s.metrics.lastGoodSavedAt.Set(float64(head.Saved.Unix()))
	s.metrics.lastGoodBytes.Add(float64(n))
	return nil
}

// collectRecords returns the records that belong in a copy.
func (s *Store) collectRecords(holds func(*record) bool) (lastGoodHead, []*record) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	head := lastGoodHead{Saved: time.Now().UTC().Truncate(time.Second), Revision: s.revision, Cursor: s.cursor}
	records := make([]*record, 0, len(s.records))
	for _, r := range s.records {
		if holds(r) {
			records = append(records, r)
		}
	}
	return head, records
}

// writeLastGood replaces the copy durably. After an error the old or the new copy may be in place.
func (s *Store) writeLastGood(head lastGoodHead, records []*record) (size int64, err error) {
	path := s.cfg.LastGoodFile
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithPermissions(lastGoodMode))
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Cleanup() }() // does nothing after the rename
	z, err := zstd.NewWriter(f, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return 0, err
	}
	lines := json.NewEncoder(z)
	err = lines.Encode(head)
	for _, r := range records {
		var line lastGoodRecord
		if err == nil {
			line, err = s.encodeLine(r)
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
	return info.Size(), syncDir(filepath.Dir(path)) // otherwise a power cut may bring back the previous copy
}

// removeLastGood durably removes the copy, so that it is never used again. The caller holds writer.
func (s *Store) removeLastGood() {
	s.lastGoodRevision = 0
	if s.cfg.LastGoodFile == "" {
		return
	}
	err := os.Remove(s.cfg.LastGoodFile)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = syncDir(filepath.Dir(s.cfg.LastGoodFile))
	}
	if err != nil {
		s.log.Error("old copy of the store not removed", zap.Error(err))
	}
}

func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// removePartialCopies removes temporary files of copies that a kill interrupted: renameio names them ".", the name and a number.
func (s *Store) removePartialCopies() {
	if s.cfg.LastGoodFile == "" {
		return
	}
	folder, name := filepath.Split(s.cfg.LastGoodFile)
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

// openLastGood opens the copy for reading. The caller calls end, also after an error.
func (s *Store) openLastGood() (lines *json.Decoder, head lastGoodHead, end func(), err error) {
	f, err := os.Open(s.cfg.LastGoodFile)
	if err != nil {
		return nil, head, func() {}, err
	}
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxLastGoodLine))
	if err != nil {
		return nil, head, func() { _ = f.Close() }, err // opened only for reading
	}
	lines = json.NewDecoder(z)
	err = lines.Decode(&head)
	return lines, head, func() { z.Close(); _ = f.Close() }, err
}

// isSoleCopy reports whether the copy was written to rebuild the bucket from it.
func (s *Store) isSoleCopy() bool {
	_, head, end, err := s.openLastGood()
	end()
	return err == nil && head.Sole
}

// readLastGood returns the copy's head and its undamaged records; nil without a copy. Without a stream epoch the head's
// cursor must not be used. The head is Sole only if the copy is whole.
func (s *Store) readLastGood() (lastGoodHead, map[wire.Key]*record) {
	lines, head, end, err := s.openLastGood()
	defer end()
	if lines == nil {
		if s.cfg.LastGoodFile != "" {
			s.log.Warn("no copy of the store to restore from", zap.Error(err))
		}
		return lastGoodHead{}, nil
	}
	records := map[wire.Key]*record{}
	for err == nil {
		var c lastGoodRecord
		if err = lines.Decode(&c); err != nil {
			break
		}
		if r := s.decodeLine(&c); r != nil && (r.isDurable() || head.Sole) {
			records[r.Key] = r
		} else {
			head.Sole = false
		}
	}
	if !errors.Is(err, io.EOF) {
		s.log.Warn("copy of the store is damaged, taking what comes before", zap.Int("records", len(records)), zap.Error(err))
		head.Cursor.StreamEpoch, head.Sole = "", false // each record has its own checksum; the head has none
	}
	return head, records
}

// encodeLine returns the line of a copy for a record.
func (s *Store) encodeLine(r *record) (lastGoodRecord, error) {
	c := lastGoodRecord{
		Key: r.Key.String(), State: r.state, UID: r.UID, Version: r.Version, Cluster: r.ClusterEpoch, Stream: r.epoch,
		Floor: r.lastRemoteSeq, Desired: r.desired, LastGood: r.LastGood, Check: r.check[:],
	}
	if r.state != stateLive || r.salt == nil && !s.isSecret(r.Key) {
		c.Object = r.Object
		return c, nil
	}
	sealed, err := s.sealRecord(r)
	c.Sealed = sealed
	return c, err
}

// decodeLine reverses encodeLine; it returns nil for a damaged record.
func (s *Store) decodeLine(c *lastGoodRecord) *record {
	key, err := wire.ParseKey(c.Key)
	if err != nil {
		return nil
	}
	r := &record{
		Entry: Entry{Key: key, UID: c.UID, Version: c.Version, ClusterEpoch: c.Cluster, LastGood: c.LastGood},
		state: c.State, desired: c.Desired, lastRemoteSeq: c.Floor, epoch: c.Stream,
	}
	data := c.Object
	if c.Sealed != nil {
		data = c.Sealed
	}
	if r.state == stateLive {
		if err := s.unsealRecord(r, c.Sealed != nil, data); err != nil {
			return nil
		}
	}
	r.Sequence = r.remoteSequence()
	r.computeChecksums()
	if string(r.check[:]) != string(c.Check) {
		return nil
	}
	return r
}
