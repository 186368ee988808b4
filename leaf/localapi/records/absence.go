package records

import (
	"context"
	"encoding/json"
	"sync"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (

	// maxAbsences limits the number of remembered absences: optional references of pods, a handful on a real node.
	maxAbsences = 1024
)

// Absences remembers, across restarts, the objects that the cloud reported as absent.
type Absences struct {
	store *store.Store
	log   *zap.Logger

	mu   sync.Mutex // guards keys
	keys map[wire.Key]bool
}

const (
	absenceResource = "absences"
)

// NewAbsences reads the absences in the store.
func NewAbsences(st *store.Store, log *zap.Logger) *Absences {
	a := &Absences{store: st, log: log, keys: map[wire.Key]bool{}}
	entries, _ := st.List(Group, absenceResource, "")
	for _, e := range entries {
		var record absenceRecord
		if err := json.Unmarshal(e.Object, &record); err != nil {
			log.Warn("unreadable absence ignored", zap.Stringer("key", e.Key), zap.Error(err))
			continue
		}
		a.keys[record.Key] = true
	}
	return a
}

// absenceRecord is the stored form: the requested object, and the metadata that the store requires.
type absenceRecord struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Key wire.Key `json:"key"`
}

func absenceKey(key wire.Key) wire.Key {
	return wire.Key{Group: Group, Resource: absenceResource, Namespace: key.Namespace, Name: key.String()}
}

// IsKnown reports whether the cloud's last answer was that an object is absent.
func (a *Absences) IsKnown(key wire.Key) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.keys[key]
}

// Add records that an object is absent.
func (a *Absences) Add(ctx context.Context, key wire.Key) {
	a.mu.Lock()
	full := len(a.keys) >= maxAbsences
	seen := a.keys[key]
	if !full {
		a.keys[key] = true
	}
	a.mu.Unlock()
	if full || seen {
		return
	}
	record := absenceRecord{Key: key}
	at := absenceKey(key)
	record.Metadata.Name = at.Name
	data, err := json.Marshal(record)
	if err == nil {
		_, err = a.store.Put(ctx, at, data, nil)
	}
	if err != nil {
		// The absence stays known until a restart.
		a.log.Warn("absence not kept", zap.Stringer("key", key), zap.Error(err))
	}
}

// Remove forgets an absence.
func (a *Absences) Remove(ctx context.Context, key wire.Key) {
	a.mu.Lock()
	seen := a.keys[key]
	delete(a.keys, key)
	a.mu.Unlock()
	if !seen {
		return
	}
	if _, err := a.store.Delete(ctx, absenceKey(key), "", nil); err != nil {
		a.log.Warn("absence not forgotten", zap.Stringer("key", key), zap.Error(err))
	}
}
