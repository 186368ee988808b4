package nodestore

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/leaf/store"
)

// Recorder is the node's store for the fault suite: it records the content after each change by the hub. Its file stays open until
// the process ends.
type Recorder struct {
	*Audited
	to  *history.Writer
	log *zap.Logger
}

// NewRecorder returns the store with a history in a file, and records the present content.
func NewRecorder(st *Audited, file string, log *zap.Logger) (*Recorder, error) {
	w, err := history.Open(file)
	if err != nil {
		return nil, err
	}
	r := &Recorder{Audited: st, to: w, log: log}
	r.recordAll(history.Opened)
	return r, nil
}

// Apply records the objects that messages name.
func (r *Recorder) Apply(ctx context.Context, messages []wire.Message, sequence uint64) error {
	if err := r.Audited.Apply(ctx, messages, sequence); err != nil {
		return err
	}
	line := history.Line{Op: history.Applied, Cursor: r.Cursor()}
	for _, m := range messages {
		entry, err := r.Get(m.Key)
		if err == nil {
			line.Objects = appendObject(line.Objects, entry)
		} else if errors.Is(err, store.ErrNotFound) {
			line.Objects = append(line.Objects, history.Object{Key: m.Key, Gone: true})
		}
	}
	r.appendLine(line)
	return nil
}

// Replace records the whole store.
func (r *Recorder) Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error {
	if err := r.Audited.Replace(ctx, messages, streamEpoch, sequence); err != nil {
		return err
	}
	r.recordAll(history.Replaced)
	return nil
}

// RecordAck records an ack that is about to be sent. It is deliver.Config.BeforeAck.
func (r *Recorder) RecordAck(sequence uint64) {
	r.appendLine(history.Line{Op: history.Acked, Cursor: wire.Cursor{Sequence: sequence}})
}

func (r *Recorder) recordAll(op history.Op) {
	line := history.Line{Op: op, Cursor: r.Cursor()}
	entries, _ := r.All()
	for _, e := range entries {
		line.Objects = appendObject(line.Objects, e)
	}
	r.appendLine(line)
}

func (r *Recorder) appendLine(line history.Line) {
	if err := r.to.Append(line); err != nil {
		r.log.Warn("history not written", zap.Error(err))
	}
}

// appendObject appends an entry, unless it is the node's own.
func appendObject(to []history.Object, e store.Entry) []history.Object {
	if e.Sequence == 0 {
		return to
	}
	return append(to, history.Object{Key: e.Key, UID: e.UID, Version: e.Version, Sequence: e.Sequence})
}
