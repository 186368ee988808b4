package agent

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/deliver"
)

// withHistory returns the store for the delivery: itself, or one that also writes a history of its changes.
func (n *Node) withHistory(st *audited) (deliver.Store, error) {
	if n.cfg.History == "" {
		return st, nil
	}
	w, err := history.Open(n.cfg.History)
	if err != nil {
		return nil, err
	}
	r := &historyRecorder{audited: st, to: w, log: n.log.Named("history")}
	r.recordAll(history.Opened)
	return r, nil
}

// historyRecorder records the content of its store after each change by the hub. Its file stays open until the process ends.
type historyRecorder struct {
	*audited
	to  *history.Writer
	log *zap.Logger
}

// Apply records the objects named by messages.
func (r *historyRecorder) Apply(ctx context.Context, messages []wire.Message, sequence uint64) error {
	if err := r.audited.Apply(ctx, messages, sequence); err != nil {
		return err
	}
	line := history.Line{Op: history.Applied, Cursor: r.Cursor()}
	for _, m := range messages {
		entry, err := r.Get(m.Key)
		switch {
		case errors.Is(err, store.ErrNotFound):
			line.Objects = append(line.Objects, history.Object{Key: m.Key, Gone: true})
		case err == nil && entry.Sequence != 0:
			line.Objects = append(line.Objects, historyObject(entry))
		}
	}
	r.appendLine(line)
	return nil
}

// Replace records the whole store.
func (r *historyRecorder) Replace(ctx context.Context, messages []wire.Message, streamEpoch string, sequence uint64) error {
	if err := r.audited.Replace(ctx, messages, streamEpoch, sequence); err != nil {
		return err
	}
	r.recordAll(history.Replaced)
	return nil
}

// Acked records the objects that are about to be acked.
func (r *historyRecorder) Acked(sequence uint64) {
	r.appendLine(history.Line{Op: history.Acked, Cursor: wire.Cursor{Sequence: sequence}})
}

func (r *historyRecorder) recordAll(op history.Op) {
	line := history.Line{Op: op, Cursor: r.Cursor()}
	entries, _ := r.All()
	for _, e := range entries {
		if e.Sequence != 0 { // the other objects are the node's own
			line.Objects = append(line.Objects, historyObject(e))
		}
	}
	r.appendLine(line)
}

func (r *historyRecorder) appendLine(line history.Line) {
	if err := r.to.Append(line); err != nil {
		r.log.Warn("history not written", zap.Error(err))
	}
}

func historyObject(e store.Entry) history.Object {
	return history.Object{Key: e.Key, UID: e.UID, Version: e.Version, Sequence: e.Sequence}
}
