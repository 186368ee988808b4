// Package history is what the fault suite knows of a gateway's past: a file to which edgecore appends one JSON line for each
// change of its store, after the change was synced, and one before each ack. internal/faults reads it and judges.
//
// A line is one write, so a killed process leaves whole lines, and at most one that is torn, the last. The file is not
// synced: it outlives a process, not a power cut. Only the configuration's field history opens one, for tests.
package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// Op says what a line tells.
type Op string

// The lines. Opened and Replaced list all that the store holds from the cloud; Applied lists only the objects that messages
// named, as the store holds them now. Acked says that what lies up to Sequence is about to be acked.
const (
	Opened   Op = "opened"
	Applied  Op = "applied"
	Replaced Op = "replaced"
	Acked    Op = "acked"
)

// Line is one line.
type Line struct {
	Time time.Time `json:"time"`
	Op   Op        `json:"op"`
	// Cursor is the store's, after the change; of an ack only its Sequence counts.
	Cursor  wire.Cursor `json:"cursor"`
	Objects []Object    `json:"objects,omitempty"`
}

// Object is one object in the store, or what is known of one that is not there.
type Object struct {
	Key wire.Key `json:"key"`
	// Gone: the store does not hold it; then only Key is set.
	Gone    bool   `json:"gone,omitempty"`
	UID     string `json:"uid,omitempty"`
	Version string `json:"version,omitempty"`
	// Sequence is the hub stream's sequence of the message it came with.
	Sequence uint64 `json:"sequence,omitempty"`
}

// Writer appends lines. It may be used by several goroutines.
type Writer struct{ file *os.File }

// Open opens the file at path for appending, making it if need be.
func Open(path string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	return &Writer{file: file}, nil
}

// Append writes one line with the present time.
func (w *Writer) Append(line Line) error {
	line.Time = time.Now()
	data, err := json.Marshal(line)
	if err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	// It begins with a line feed, so that a torn line before it does not spoil this one.
	if _, err := w.file.Write(append([]byte{'\n'}, data...)); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Read returns the whole lines of a file from an offset on, in order, and the offset for the next call. A line that is
// torn, by a process that was killed while it wrote it, is left out.
func Read(path string, from int64) (lines []Line, next int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, from, fmt.Errorf("read history: %w", err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return nil, from, fmt.Errorf("read history: %w", err)
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return nil, from, fmt.Errorf("read history: %w", err)
	}
	next = from + int64(len(data))
	pieces := bytes.Split(data, []byte{'\n'})
	for i, piece := range pieces {
		var line Line
		switch {
		case len(piece) == 0:
		case json.Unmarshal(piece, &line) == nil:
			lines = append(lines, line)
		case i == len(pieces)-1:
			next -= int64(len(piece)) + 1 // it may be in the middle of being written
		}
	}
	return lines, max(next, from), nil
}
