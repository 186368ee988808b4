package faults

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/history"
)

// Namespace is the workload's namespace. Objects of other namespaces are not checked.
const Namespace = "faults"

// Name is the name of a workload object of a node, so that a foreign object is recognized by its name.
func Name(node, kind string, i int) string { return fmt.Sprintf("%s-%s-%d", node, kind, i) }

// isWorkloadKey reports whether the workload made a key, for any node.
func isWorkloadKey(key wire.Key) bool {
	return key.Namespace == Namespace && strings.HasPrefix(key.Name, "edge-")
}

// isOwnedKey reports whether the workload made a key for this node.
func isOwnedKey(node string, key wire.Key) bool {
	return isWorkloadKey(key) && strings.HasPrefix(key.Name, node+"-")
}

// Deletions records the workload's deletions in Kubernetes, and wiped disks. It is safe for concurrent use.
type Deletions struct {
	mu    sync.Mutex
	asked map[string]time.Time // guarded by mu; by UID
}

// RecordAsked records that the object with this UID is about to be deleted. Call it before the request.
func (d *Deletions) RecordAsked(uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked == nil {
		d.asked = map[string]time.Time{}
	}
	if _, again := d.asked[uid]; !again {
		d.asked[uid] = time.Now()
	}
}

func (d *Deletions) askedBefore(uid string, moment time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked, ok := d.asked[uid]
	return ok && !asked.After(moment)
}

// HistoryChecker checks the growing history of one node. Make it with NewHistoryChecker.
type HistoryChecker struct {
	node      string
	deletions *Deletions
	// newStores counts the new and empty stores that the node may still show.
	newStores int
	life      storeLife
	breaches  []string
}

// storeLife is the lifetime of one store, from its creation to the wipe of its disk.
type storeLife struct {
	epoch string
	// started is set once the first line was read.
	started bool
	// cursor is the last recorded one; acked is the highest acked sequence of each stream epoch.
	cursor wire.Cursor
	acked  uint64
	// held is the content of the store; highest is the highest version that it ever held of a key.
	held    map[wire.Key]history.Object
	highest map[wire.Key]uint64
	// removed are the UIDs that it held once and no longer holds.
	removed map[string]struct{}
}

// NewHistoryChecker makes the checker of one node.
func NewHistoryChecker(node string, deletions *Deletions) *HistoryChecker {
	return &HistoryChecker{node: node, deletions: deletions, newStores: 1} // the first store counts as one
}

// AllowNewStore allows the node one more new store.
func (j *HistoryChecker) AllowNewStore() { j.newStores++ }

// ResetVersions accepts that Kubernetes was restored to an earlier state: versions are compared anew.
func (j *HistoryChecker) ResetVersions() { clear(j.life.highest) }

// Check checks the next lines of the history and returns every violation, worded as the broken promise.
func (j *HistoryChecker) Check(lines []history.Line) []string {
	j.breaches = nil
	for _, line := range lines {
		switch line.Op {
		case history.Opened:
			j.checkOpened(line)
		case history.Applied:
			j.checkCursor(line)
			for _, o := range line.Objects {
				j.checkObject(line, o)
			}
		case history.Replaced:
			j.checkCursor(line)
			j.checkReplaced(line)
		case history.Acked:
			j.checkAck(line)
		default:
			j.addBreach(line, "a line of unknown kind %q", line.Op)
		}
	}
	return j.breaches
}

func (j *HistoryChecker) addBreach(line history.Line, format string, args ...any) {
	j.breaches = append(j.breaches, fmt.Sprintf("%s %s: %s", line.Time.Format("15:04:05.000"), j.node, fmt.Sprintf(format, args...)))
}

// checkOpened checks a process that has opened its store: the store must hold everything that was acked before.
func (j *HistoryChecker) checkOpened(line history.Line) {
	l := &j.life
	if !l.started || l.epoch != line.Cursor.StoreEpoch {
		if j.newStores--; j.newStores < 0 {
			j.addBreach(line, "the store is a new one, and nobody wiped the old one")
		}
		*l = storeLife{
			epoch: line.Cursor.StoreEpoch, started: true, cursor: line.Cursor,
			held: map[wire.Key]history.Object{}, highest: map[wire.Key]uint64{}, removed: map[string]struct{}{},
		}
		for _, o := range line.Objects {
			j.checkObject(line, o)
		}
		return
	}
	same := line.Cursor == l.cursor
	if line.Cursor.StreamEpoch != l.cursor.StreamEpoch && l.cursor.StreamEpoch != "" || line.Cursor.Sequence < max(l.acked, l.cursor.Sequence) {
		j.addBreach(line, "acked up to %d and saved up to %+v, but after a restart the store stands at %+v", l.acked, l.cursor, line.Cursor)
	}
	before := maps.Clone(l.held)
	j.checkReplaced(line)
	if !same {
		return // the process was killed before it recorded its last commit
	}
	for key, o := range before {
		if j.deletions.askedBefore(o.UID, line.Time) {
			continue // part of an interrupted commit: the tombstone was saved, the cursor was not
		}
		if _, still := l.held[key]; !still && o.UID != "" && key.Resource != "pods" { // a gateway may remove a pod by itself
			j.addBreach(line, "%s, saved at %d, is missing after a restart", key.Human(), o.Sequence)
		}
	}
}

// checkCursor checks the progress of the cursor.
func (j *HistoryChecker) checkCursor(line history.Line) {
	l := &j.life
	if !l.started {
		j.addBreach(line, "the history does not begin with an opened store")
		l.started, l.epoch = true, line.Cursor.StoreEpoch
		l.held, l.highest, l.removed = map[wire.Key]history.Object{}, map[wire.Key]uint64{}, map[string]struct{}{}
	}
	if line.Cursor.StoreEpoch != l.epoch {
		j.addBreach(line, "the store's epoch changed while it was open")
		l.epoch = line.Cursor.StoreEpoch
	}
	if line.Cursor.StreamEpoch != l.cursor.StreamEpoch {
		l.acked = 0
	} else if line.Cursor.Sequence < l.cursor.Sequence && line.Op == history.Applied {
		j.addBreach(line, "the cursor went from %d back to %d", l.cursor.Sequence, line.Cursor.Sequence)
	}
	l.cursor = line.Cursor
}

func (j *HistoryChecker) checkAck(line history.Line) {
	if line.Cursor.Sequence > j.life.cursor.Sequence {
		j.addBreach(line, "acked %d, but only %d is on disk", line.Cursor.Sequence, j.life.cursor.Sequence)
	}
	j.life.acked = max(j.life.acked, line.Cursor.Sequence)
}

// checkReplaced checks a line that lists the whole store.
func (j *HistoryChecker) checkReplaced(line history.Line) {
	there := map[wire.Key]struct{}{}
	for _, o := range line.Objects {
		there[o.Key] = struct{}{}
		j.checkObject(line, o)
	}
	for _, key := range slices.SortedFunc(maps.Keys(j.life.held), func(a, b wire.Key) int { return strings.Compare(a.String(), b.String()) }) {
		if _, ok := there[key]; !ok {
			j.checkObject(line, history.Object{Key: key, Gone: true})
		}
	}
	j.life.cursor = line.Cursor
}

// checkObject checks one change of an object.
func (j *HistoryChecker) checkObject(line history.Line, o history.Object) {
	if o.Key.Namespace != Namespace {
		return
	}
	if isWorkloadKey(o.Key) && !isOwnedKey(j.node, o.Key) && !o.Gone {
		j.addBreach(line, "%s belongs to another node", o.Key.Human())
	}
	l := &j.life
	held, was := l.held[o.Key]
	if was && (o.Gone || held.UID != o.UID) {
		if !j.deletions.askedBefore(held.UID, line.Time) {
			j.addBreach(line, "%s with uid %s was removed, and nobody had deleted it", o.Key.Human(), held.UID)
		}
		l.removed[held.UID] = struct{}{}
		delete(l.held, o.Key)
	}
	if o.Gone {
		return
	}
	if _, gone := l.removed[o.UID]; gone {
		j.addBreach(line, "%s with uid %s came back after it had been removed", o.Key.Human(), o.UID)
	}
	version, err := strconv.ParseUint(o.Version, 10, 64)
	if err != nil {
		j.addBreach(line, "%s has version %q", o.Key.Human(), o.Version)
		return
	}
	if version < l.highest[o.Key] {
		j.addBreach(line, "%s went from version %d back to %d", o.Key.Human(), l.highest[o.Key], version)
	}
	l.highest[o.Key] = version
	l.held[o.Key] = o
}
