package published

import (
	"maps"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// WorkLimit is how long work on a key takes at most: longer than a message is tried.
const WorkLimit = 30 * time.Second

// working are the keys that are worked on. Work that has failed stays for WorkLimit. It has no lock of its own.
type working struct{ since map[wire.Key]time.Time }

func (w *working) begin(key wire.Key) {
	if w.since == nil {
		w.since = map[wire.Key]time.Time{}
	}
	w.since[key] = time.Now()
}

func (w *working) end(key wire.Key) {
	delete(w.since, key)
	maps.DeleteFunc(w.since, func(_ wire.Key, began time.Time) bool { return time.Since(began) >= WorkLimit })
	if len(w.since) == 0 {
		w.since = nil // an emptied map keeps its memory, and there are many nodes
	}
}

// on reports whether a key is worked on.
func (w *working) on(key wire.Key) bool {
	began, ok := w.since[key]
	return ok && time.Since(began) < WorkLimit
}
