package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

// markSize is the length of a high-water mark: a padded line of JSON. The longest is about 290 bytes.
const markSize = 512

const markMode = 0o600

// Mark is the high-water mark: the state of a store after its last commit.
type Mark struct {
	Revision uint64      `json:"revision"`
	Sum      uint64      `json:"sum"`
	Names    uint64      `json:"names"`
	Cursor   wire.Cursor `json:"cursor"`
	Check    string      `json:"check"`
}

func (m *Mark) checksum() string {
	check := record.Checksum(strconv.FormatUint(m.Revision, 10), strconv.FormatUint(m.Sum, 10), strconv.FormatUint(m.Names, 10),
		m.Cursor.StoreEpoch, m.Cursor.StreamEpoch, strconv.FormatUint(m.Cursor.Sequence, 10))
	return fmt.Sprintf("%x", check)
}

// MarkFile is the file of the mark, outside the bucket. At a damaged record nats-server cuts off the rest of a block. The
// remainder resembles an older store that is whole; the mark shows that it is not. The file is overwritten in place after each
// commit and never synced: so it is never ahead of the bucket, costs microseconds and almost no wear. After a power cut it may
// be old or unreadable, which then proves nothing.
type MarkFile struct {
	path string
	log  *zap.Logger
}

// NewMarkFile returns the file of a mark at a path; "" for none.
func NewMarkFile(path string, log *zap.Logger) *MarkFile { return &MarkFile{path, log} }

// Save overwrites the mark. A failed write does not stop the store.
func (f *MarkFile) Save(m Mark) {
	if f.path == "" {
		return
	}
	m.Check = m.checksum()
	if err := m.write(f.path); err != nil {
		f.log.Warn("mark of the store not written", zap.Error(err))
	}
}

// Read returns the state of the store at its last acked commit, or nil if that is unknown. A mark of a store other than the
// one named by epoch is ignored; with epoch "" any mark is accepted.
func (f *MarkFile) Read(epoch string) *Mark {
	if f.path == "" {
		return nil
	}
	file, err := os.Open(f.path)
	if err != nil {
		return nil // the first commit creates it
	}
	defer func() { _ = file.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(file, markSize))
	var m Mark
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil || m.Check != m.checksum() {
		f.log.Warn("mark of the store unreadable, going on without", zap.Error(err))
		return nil
	}
	if epoch != "" && m.Cursor.StoreEpoch != epoch {
		return nil
	}
	return &m
}

func (m *Mark) write(path string) (err error) {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, markMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteAt(fmt.Appendf(nil, "%-*s\n", markSize-1, data), 0)
	return err
}
