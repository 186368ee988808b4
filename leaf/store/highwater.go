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

// highWaterSize is the length of a mark: a line of JSON, padded. The longest is some 290 bytes.
const highWaterSize = 512

const highWaterMode = 0o600

// highWaterMark is what a store was after its last commit.
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

// saveHighWater remembers outside the bucket how far it has come. At a damaged record nats-server cuts off the rest of a block, and
// what is left looks like an older store that is whole; the mark shows that it is not. It is written over in place after
// each commit and never synced: so it is not ahead of the bucket, costs microseconds and next to no wear, and after a
// power cut may be old or unreadable, which then proves nothing. That it cannot be written is no reason to stop.
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

// readHighWater returns what the store was at the last commit that was acked; nil for unknown. A mark of another store than
// the one named by epoch counts for nothing; with epoch "" any is taken.
func (s *Store) readHighWater(epoch string) *highWaterMark {
	if s.cfg.HighWaterFile == "" {
		return nil
	}
	f, err := os.Open(s.cfg.HighWaterFile)
	if err != nil {
		return nil // it is made with the first commit
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
