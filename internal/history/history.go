// Package history records the changes of a gateway's store for the fault suite. edgecore appends one JSON line to a file for each
// change of its store, after the change was synced, and one before each ack. test/faults reads and checks it.
//
// A line is one write, so a killed process leaves whole lines, and at most one torn line, the last. The file is not
// synced: it survives the kill of a process, not a power cut. Only the field history of the configuration enables it, for tests.
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

// Op is the kind of a line.
type Op string

// The kinds of lines. Opened and Replaced list all objects of the cloud in the store. Applied lists only the objects that messages
// named, in their present state. Acked precedes the ack of everything up to Sequence.
const (
	Opened   Op = "opened"
	Applied  Op = "applied"
	Replaced Op = "replaced"
	Acked    Op = "acked"
)

// Line is one line of the history.
type Line struct {
	Time time.Time `json:"time"`
	Op   Op        `json:"op"`
	// Cursor is the store's cursor after the change; for an ack only its Sequence counts.
	Cursor  wire.Cursor `json:"cursor"`
	Objects []Object    `json:"objects,omitempty"`
}

// Object is one object in the store, or the key of one that is not in it.
type Object struct {
	Key wire.Key `json:"key"`
	// Gone is set if the store does not hold the object; then only Key is set.
	Gone    bool   `json:"gone,omitempty"`
	UID     string `json:"uid,omitempty"`
	Version string `json:"version,omitempty"`
	// Sequence is the sequence of its message in the hub's stream.
	Sequence uint64 `json:"sequence,omitempty"`
}

// Writer appends lines. It is safe for concurrent use.
type Writer struct{ file *os.File }

// Open opens the file at path for appending, and creates it if needed.
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
	// It begins with a line feed, so that a torn line before it does not corrupt this one.
	if _, err := w.file.Write(append([]byte{'\n'}, data...)); err != nil {
		return fmt.Errorf("write history: %w", err)
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Read returns the whole lines of a file from an offset on, in order, and the offset for the next call. It leaves out a torn
// line of a process that was killed while writing it.
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
			next -= int64(len(piece)) + 1 // it may still be in the process of being written
		}
	}
	return lines, max(next, from), nil
}
