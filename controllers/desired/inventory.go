package desired

import "github.com/frond-edge/frond/api/wire"

// Inventory sums up what the stream holds for a node but for the objects of except, and up to which sequence that reaches. A
// node whose cursor has come there holds the same. known is false while this replica does not know what the stream
// holds, or the first publication is under way. It does not block.
func (e *Engine) Inventory(node string, except []wire.Key) (census wire.Inventory, upTo uint64, known bool) {
	e.mu.Lock()
	s := e.nodes[node]
	e.mu.Unlock()
	if s == nil || !s.snapshotComplete() {
		return census, 0, false
	}
	left := make(map[wire.Key]struct{}, len(except)+1)
	left[wire.SnapshotMarker()] = struct{}{}
	for _, key := range except {
		left[key] = struct{}{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, r := range s.published {
		upTo = max(upTo, r.sequence)
		if _, out := left[key]; !out && !r.deleted {
			census.Add(key, r.uid, r.version)
		}
	}
	return census, upTo, s.published != nil
}
