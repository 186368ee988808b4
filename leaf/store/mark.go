package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"go.uber.org/zap"
)

// markSize is the length of a mark: a line of text with revision, store epoch and a checksum over both.
const markSize = 128

const markMode = 0o600

// writeMark remembers outside the bucket how far it has come. At a damaged record nats-server cuts off the rest of a block, and
// what is left looks like an older store that is whole; the mark shows that it is not. It is written over in place after
// each commit and never synced: so it is not ahead of the bucket, costs microseconds and next to no wear, and after a
// power cut may be old or unreadable, which then proves nothing. That it cannot be written is no reason to stop.
func (s *Store) writeMark(revision uint64) {
	if s.cfg.Mark == "" {
		return
	}
	if err := s.putMark(revision); err != nil {
		s.log.Warn("mark of the store not written", zap.Error(err))
	}
}

func (s *Store) putMark(revision uint64) (err error) {
	f, err := os.OpenFile(s.cfg.Mark, os.O_CREATE|os.O_WRONLY, markMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteAt(encodeMark(revision, s.Cursor().StoreEpoch), 0)
	return err
}

func encodeMark(revision uint64, epoch string) []byte {
	check := checksum(strconv.FormatUint(revision, 10), epoch)
	return fmt.Appendf(nil, "%-*s\n", markSize-1, fmt.Sprintf("%d %s %x", revision, epoch, check))
}

// readMark returns the revision that was acked last in the life of the store named by epoch; 0 for unknown.
func (s *Store) readMark(epoch string) uint64 {
	if s.cfg.Mark == "" {
		return 0
	}
	f, err := os.Open(s.cfg.Mark)
	if err != nil {
		return 0 // it is made with the first commit
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, markSize))
	var of string
	var revision uint64
	if err == nil {
		_, err = fmt.Sscan(string(data), &revision, &of)
	}
	if err != nil || string(encodeMark(revision, of)) != string(data) {
		s.log.Warn("mark of the store unreadable, going on without", zap.Error(err))
		return 0
	}
	if of != epoch {
		return 0
	}
	return revision
}
