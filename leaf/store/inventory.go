package store

import "github.com/frond-edge/frond/api/wire"

// Inventory summarizes the live objects as the cloud sent them, and lists the objects deleted here whose deletion is not
// confirmed. The cursor is of the same moment; during a large Apply or Replace the objects are ahead of it.
func (s *Store) Inventory() (cursor wire.Cursor, census wire.Inventory, deleted []wire.Key) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, r := range s.records {
		switch {
		case r.state == stateLive && r.desired:
			census.Add(key, r.UID, r.Version)
		case r.state == stateGone:
			deleted = append(deleted, key)
		}
	}
	return s.cursor, census, deleted
}
