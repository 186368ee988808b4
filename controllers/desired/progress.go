package desired

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// knownVersion returns the newest version of an object that a node is known to have on disk, given that it has
// everything up to a sequence.
func (r streamRecord) knownVersion(sequence uint64) string {
	switch {
	case r.sequence > sequence:
		return r.ackedVersion
	case r.deleted:
		return ""
	}
	return r.version
}

// Progress returns how far behind a node is that has everything up to a stream sequence on disk: how many of the
// changes that the stream holds for it have not arrived, and when the first of them was made. known is false unless
// this replica serves the node and has read what the stream holds. It reads the record of each object of the node, and
// does not block.
func (e *Engine) Progress(node string, sequence uint64) (behind int, oldest time.Time, known bool) {
	e.mu.Lock()
	s := e.nodes[node]
	e.mu.Unlock()
	if s == nil {
		return 0, time.Time{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.published {
		if r.sequence <= sequence || key == wire.SnapshotMarker() {
			continue
		}
		if behind++; oldest.IsZero() || r.madeAt.Before(oldest) {
			oldest = r.madeAt
		}
	}
	return behind, oldest, s.published != nil
}
