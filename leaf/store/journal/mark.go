package journal

import (
	"encoding/binary"
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

const (
	// markSize is the length of a mark: one sector, which a disk writes as a whole. The longest used is about 180 bytes.
	markSize = 512
	// markMagic begins a mark. Older versions wrote a padded line of JSON.
	markMagic     = "FrondMk2"
	markCheckSize = 16 // of record.Checksum
	markMode      = 0o600
)

var errMark = errors.New("not a mark, or damaged")

// Mark is the high-water mark: the state of a store after its last commit.
type Mark struct {
	Revision uint64
	// Sum and Names are the sums over all records and over all names.
	Sum, Names uint64
	Cursor     wire.Cursor
}

// MarkFile is the file of the mark, outside the bucket. At a damaged record nats-server cuts off the rest of a block. The
// remainder resembles an older store that is whole; the mark shows that it is not. The file is overwritten in place after each
// commit and never synced: so it is never ahead of the bucket, costs microseconds and almost no wear. After a power cut it may
// be old or unreadable, which then proves nothing.
type MarkFile struct {
	path string
	log  *zap.Logger
	// file is open from the first Save to Close; nil otherwise. The caller of Save and Close excludes other callers.
	file *os.File
}

// NewMarkFile returns the file of a mark at a path; "" for none.
func NewMarkFile(path string, log *zap.Logger) *MarkFile { return &MarkFile{path: path, log: log} }

// Save overwrites the mark. A failed write does not stop the store.
func (f *MarkFile) Save(m Mark) {
	if f.path == "" {
		return
	}
	data, err := m.encode()
	if err == nil {
		err = f.write(data)
	}
	if err != nil {
		f.log.Warn("mark of the store not written", zap.Error(err))
	}
}

// Close closes the file. The next Save opens it again.
func (f *MarkFile) Close() error {
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
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
	var m *Mark
	if err == nil {
		m, err = decodeMark(data)
	}
	if err != nil {
		f.log.Warn("mark of the store unreadable, going on without", zap.Error(err))
		return nil
	}
	if epoch != "" && m.Cursor.StoreEpoch != epoch {
		return nil
	}
	return m
}

// write overwrites the file, which stays open. After an error the next write opens it again.
func (f *MarkFile) write(data []byte) (err error) {
	if f.file == nil {
		if f.file, err = os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY, markMode); err != nil {
			return err
		}
	}
	if _, err = f.file.WriteAt(data, 0); err != nil {
		return errors.Join(err, f.Close())
	}
	return nil
}

// encode returns the bytes of a mark: the magic, four numbers, the two epochs with their lengths, zeros, and a checksum over
// all of it.
func (m *Mark) encode() ([]byte, error) {
	data := append(make([]byte, 0, markSize), markMagic...)
	for _, n := range []uint64{m.Revision, m.Sum, m.Names, m.Cursor.Sequence} {
		data = binary.BigEndian.AppendUint64(data, n)
	}
	for _, epoch := range []string{m.Cursor.StoreEpoch, m.Cursor.StreamEpoch} {
		data = append(binary.AppendUvarint(data, uint64(len(epoch))), epoch...)
	}
	if len(data) > markSize-markCheckSize {
		return nil, fmt.Errorf("mark of %d bytes, at most %d", len(data), markSize-markCheckSize)
	}
	data = data[:markSize-markCheckSize]
	check := record.Checksum(string(data))
	return append(data, check[:]...), nil
}

// decodeMark reverses encode. It also reads the JSON of older versions.
func decodeMark(data []byte) (*Mark, error) {
	if len(data) != markSize || string(data[:len(markMagic)]) != markMagic {
		return decodeJSONMark(data)
	}
	body, check := data[:markSize-markCheckSize], record.Checksum(string(data[:markSize-markCheckSize]))
	if string(check[:]) != string(data[len(body):]) {
		return nil, errMark
	}
	m, rest := &Mark{}, body[len(markMagic):]
	for _, n := range []*uint64{&m.Revision, &m.Sum, &m.Names, &m.Cursor.Sequence} {
		*n, rest = binary.BigEndian.Uint64(rest), rest[8:]
	}
	for _, epoch := range []*string{&m.Cursor.StoreEpoch, &m.Cursor.StreamEpoch} {
		length, n := binary.Uvarint(rest)
		if n <= 0 || length > uint64(len(rest)-n) {
			return nil, errMark
		}
		rest = rest[n:]
		*epoch, rest = string(rest[:length]), rest[length:]
	}
	return m, nil
}

// jsonMark is the mark of older versions.
type jsonMark struct {
	Revision uint64      `json:"revision"`
	Sum      uint64      `json:"sum"`
	Names    uint64      `json:"names"`
	Cursor   wire.Cursor `json:"cursor"`
	Check    string      `json:"check"`
}

func decodeJSONMark(data []byte) (*Mark, error) {
	var m jsonMark
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%w: %w", errMark, err)
	}
	check := record.Checksum(strconv.FormatUint(m.Revision, 10), strconv.FormatUint(m.Sum, 10), strconv.FormatUint(m.Names, 10),
		m.Cursor.StoreEpoch, m.Cursor.StreamEpoch, strconv.FormatUint(m.Cursor.Sequence, 10))
	if m.Check != fmt.Sprintf("%x", check) {
		return nil, errMark
	}
	return &Mark{m.Revision, m.Sum, m.Names, m.Cursor}, nil
}
