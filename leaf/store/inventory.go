package store

import "github.com/frond-edge/frond/api/wire"

// Inventory sums up the live objects that the cloud gave, as it gave them, and names what was deleted here and is not
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
