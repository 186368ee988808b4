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

// Namespace is where the workload lives. What other namespaces hold is not judged.
const Namespace = "faults"

// Name is what the workload calls an object of a node, so that a foreign one is known by its name.
func Name(node, kind string, i int) string { return fmt.Sprintf("%s-%s-%d", node, kind, i) }

// named tells whether the workload made a key, for whichever node.
func named(key wire.Key) bool {
	return key.Namespace == Namespace && strings.HasPrefix(key.Name, "edge-")
}

// owned tells whether the workload made a key for this node.
func owned(node string, key wire.Key) bool {
	return named(key) && strings.HasPrefix(key.Name, node+"-")
}

// Deletions is what the workload asked Kubernetes to delete, and wiped disks. It may be used by several goroutines.
type Deletions struct {
	mu    sync.Mutex
	asked map[string]time.Time // guarded by mu; by UID
}

// Asked remembers that the object with this UID is about to be deleted. Call it before the request.
func (d *Deletions) Asked(uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked == nil {
		d.asked = map[string]time.Time{}
	}
	if _, again := d.asked[uid]; !again {
		d.asked[uid] = time.Now()
	}
}

func (d *Deletions) before(uid string, moment time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	asked, ok := d.asked[uid]
	return ok && !asked.After(moment)
}

// Judge reads the history of one node as it grows. Make it with NewJudge.
type Judge struct {
	node      string
	deletions *Deletions
	// wiped is how many new and empty stores the node may still show.
	wiped int
	life  life
	found []string
}

// life is the time of one store, from its making to the wiping of its disk.
type life struct {
	epoch string
	// known says that the first line of it was read.
	known bool
	// cursor is the last one that was written down; acked the highest sequence that was acked in its stream epoch.
	cursor wire.Cursor
	acked  uint64
	// held is what the store holds; top the highest version that it ever held of a key.
	held map[wire.Key]history.Object
	top  map[wire.Key]uint64
	// removed are the UIDs that it held once and holds no more.
	removed map[string]struct{}
}

// NewJudge makes the judge of one node.
func NewJudge(node string, deletions *Deletions) *Judge {
	return &Judge{node: node, deletions: deletions, wiped: 1} // the first store counts as one
}

// Wiped allows the node one more new store.
func (j *Judge) Wiped() { j.wiped++ }

// Restored tells that Kubernetes went back in time: versions count again from there.
func (j *Judge) Restored() { clear(j.life.top) }

// Read judges the next lines of the history and returns every breach, in the words of the promise that is broken.
func (j *Judge) Read(lines []history.Line) []string {
	j.found = nil
	for _, line := range lines {
		switch line.Op {
		case history.Opened:
			j.opened(line)
		case history.Applied:
			j.committed(line)
			for _, o := range line.Objects {
				j.object(line, o)
			}
		case history.Replaced:
			j.committed(line)
			j.all(line)
		case history.Acked:
			j.ack(line)
		default:
			j.fault(line, "a line of unknown kind %q", line.Op)
		}
	}
	return j.found
}

func (j *Judge) fault(line history.Line, format string, args ...any) {
	j.found = append(j.found, fmt.Sprintf("%s %s: %s", line.Time.Format("15:04:05.000"), j.node, fmt.Sprintf(format, args...)))
}

// opened is a process that has opened its store: what was acked before must be in it.
func (j *Judge) opened(line history.Line) {
	l := &j.life
	if !l.known || l.epoch != line.Cursor.StoreEpoch {
		if j.wiped--; j.wiped < 0 {
			j.fault(line, "the store is a new one, and nobody wiped the old one")
		}
		*l = life{
			epoch: line.Cursor.StoreEpoch, known: true, cursor: line.Cursor,
			held: map[wire.Key]history.Object{}, top: map[wire.Key]uint64{}, removed: map[string]struct{}{},
		}
		for _, o := range line.Objects {
			j.object(line, o)
		}
		return
	}
	same := line.Cursor == l.cursor
	if line.Cursor.StreamEpoch != l.cursor.StreamEpoch && l.cursor.StreamEpoch != "" || line.Cursor.Sequence < max(l.acked, l.cursor.Sequence) {
		j.fault(line, "acked up to %d and saved up to %+v, but after a restart the store stands at %+v", l.acked, l.cursor, line.Cursor)
	}
	before := maps.Clone(l.held)
	j.all(line)
	if !same {
		return // a last commit was not written down any more
	}
	for key, o := range before {
		if j.deletions.before(o.UID, line.Time) {
			continue // of a commit that the death cut short, which has its tombstone and not its cursor
		}
		if _, still := l.held[key]; !still && o.UID != "" && key.Resource != "pods" { // a pod may end by the node's own word
			j.fault(line, "%s, saved at %d, is missing after a restart", key.Human(), o.Sequence)
		}
	}
}

// committed follows the cursor.
func (j *Judge) committed(line history.Line) {
	l := &j.life
	if !l.known {
		j.fault(line, "the history does not begin with an opened store")
		l.known, l.epoch = true, line.Cursor.StoreEpoch
		l.held, l.top, l.removed = map[wire.Key]history.Object{}, map[wire.Key]uint64{}, map[string]struct{}{}
	}
	if line.Cursor.StoreEpoch != l.epoch {
		j.fault(line, "the store's epoch changed while it was open")
		l.epoch = line.Cursor.StoreEpoch
	}
	if line.Cursor.StreamEpoch != l.cursor.StreamEpoch {
		l.acked = 0
	} else if line.Cursor.Sequence < l.cursor.Sequence && line.Op == history.Applied {
		j.fault(line, "the cursor went from %d back to %d", l.cursor.Sequence, line.Cursor.Sequence)
	}
	l.cursor = line.Cursor
}

func (j *Judge) ack(line history.Line) {
	if line.Cursor.Sequence > j.life.cursor.Sequence {
		j.fault(line, "acked %d, but only %d is on disk", line.Cursor.Sequence, j.life.cursor.Sequence)
	}
	j.life.acked = max(j.life.acked, line.Cursor.Sequence)
}

// all takes a line that lists the whole store.
func (j *Judge) all(line history.Line) {
	there := map[wire.Key]struct{}{}
	for _, o := range line.Objects {
		there[o.Key] = struct{}{}
		j.object(line, o)
	}
	for _, key := range slices.SortedFunc(maps.Keys(j.life.held), func(a, b wire.Key) int { return strings.Compare(a.String(), b.String()) }) {
		if _, ok := there[key]; !ok {
			j.object(line, history.Object{Key: key, Gone: true})
		}
	}
	j.life.cursor = line.Cursor
}

// object judges one object's step.
func (j *Judge) object(line history.Line, o history.Object) {
	if o.Key.Namespace != Namespace {
		return
	}
	if named(o.Key) && !owned(j.node, o.Key) && !o.Gone {
		j.fault(line, "%s belongs to another node", o.Key.Human())
	}
	l := &j.life
	held, was := l.held[o.Key]
	if was && (o.Gone || held.UID != o.UID) {
		if !j.deletions.before(held.UID, line.Time) {
			j.fault(line, "%s with uid %s was removed, and nobody had deleted it", o.Key.Human(), held.UID)
		}
		l.removed[held.UID] = struct{}{}
		delete(l.held, o.Key)
	}
	if o.Gone {
		return
	}
	if _, gone := l.removed[o.UID]; gone {
		j.fault(line, "%s with uid %s came back after it had been removed", o.Key.Human(), o.UID)
	}
	version, err := strconv.ParseUint(o.Version, 10, 64)
	if err != nil {
		j.fault(line, "%s has version %q", o.Key.Human(), o.Version)
		return
	}
	if version < l.top[o.Key] {
		j.fault(line, "%s went from version %d back to %d", o.Key.Human(), l.top[o.Key], version)
	}
	l.top[o.Key] = version
	l.held[o.Key] = o
}
