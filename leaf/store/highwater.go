package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// highWaterSize is the length of a high-water mark: a padded line of JSON. The longest is about 290 bytes.
const highWaterSize = 512

const highWaterMode = 0o600

// highWaterMark is the state of a store after its last commit.
type highWaterMark struct {
	Revision uint64      `json:"revision"`
	Sum      uint64      `json:"sum"`
	Names    uint64      `json:"names"`
	Cursor   wire.Cursor `json:"cursor"`
	Check    string      `json:"check"`
}

func (m *highWaterMark) checksum() string {
	check := checksum(strconv.FormatUint(m.Revision, 10), strconv.FormatUint(m.Sum, 10), strconv.FormatUint(m.Names, 10),
		m.Cursor.StoreEpoch, m.Cursor.StreamEpoch, strconv.FormatUint(m.Cursor.Sequence, 10))
	return fmt.Sprintf("%x", check)
}

// saveHighWater writes the newest revision to a file outside the bucket. At a damaged record nats-server cuts off the rest of a
// block. The remainder resembles an older store that is whole; the mark shows that it is not. The file is overwritten in place
// after each commit and never synced: so it is never ahead of the bucket, costs microseconds and almost no wear. After a power
// cut it may be old or unreadable, which then proves nothing. A failed write of the mark does not stop the store.
func (s *Store) saveHighWater(revision uint64) {
	if s.cfg.HighWaterFile == "" {
		return
	}
	if err := s.writeHighWater(revision); err != nil {
		s.log.Warn("mark of the store not written", zap.Error(err))
	}
}

func (s *Store) writeHighWater(revision uint64) (err error) {
	m := highWaterMark{Revision: revision, Sum: s.recordSum, Names: s.nameSum, Cursor: s.Cursor()}
	m.Check = m.checksum()
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.cfg.HighWaterFile, os.O_CREATE|os.O_WRONLY, highWaterMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteAt(fmt.Appendf(nil, "%-*s\n", highWaterSize-1, data), 0)
	return err
}

// readHighWater returns the state of the store at its last acked commit, or nil if that is unknown. A mark of a store other
// than the one named by epoch is ignored; with epoch "" any mark is accepted.
func (s *Store) readHighWater(epoch string) *highWaterMark {
	if s.cfg.HighWaterFile == "" {
		return nil
	}
	f, err := os.Open(s.cfg.HighWaterFile)
	if err != nil {
		return nil // the first commit creates it
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, highWaterSize))
	var m highWaterMark
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil || m.Check != m.checksum() {
		s.log.Warn("mark of the store unreadable, going on without", zap.Error(err))
		return nil
	}
	if epoch != "" && m.Cursor.StoreEpoch != epoch {
		return nil
	}
	return &m
}
