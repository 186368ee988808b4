package desired

import "github.com/frond-edge/frond/api/wire"

// Inventory sums up what the stream holds for a node, without the objects in except, and returns the sequence up to
// which the sum reaches. A node whose cursor has reached that sequence holds the same objects. known is false while
// this replica does not know what the stream holds, or the first publication is in progress. It does not block.
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
