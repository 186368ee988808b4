package store

import "github.com/frond-edge/frond/api/wire"

// Census sums up the live objects that the cloud gave, as it gave them, and names what was deleted here and is not
// confirmed. The cursor is of the same moment; during a large Apply or Replace the objects are ahead of it.
func (s *Store) Census() (cursor wire.Cursor, census wire.Census, deleted []wire.Key) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, r := range s.records {
		switch {
		case r.state == live && r.desired:
			census.Add(key, r.UID, r.Version)
		case r.state == gone:
			deleted = append(deleted, key)
		}
	}
	return s.cursor, census, deleted
}
