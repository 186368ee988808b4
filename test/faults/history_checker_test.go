package faults_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/history"
	"github.com/frond-edge/frond/test/faults"
)

var testStart = time.Now().Add(time.Hour) // later than the deletions of these tests

func configMapKey(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: faults.Namespace, Name: name}
}

func historyLine(op history.Op, sequence uint64, objects ...history.Object) history.Line {
	return history.Line{Time: testStart, Op: op, Cursor: wire.Cursor{StoreEpoch: "s", StreamEpoch: "h", Sequence: sequence}, Objects: objects}
}

func heldObject(name, uid string, version int) history.Object {
	return history.Object{Key: configMapKey(name), UID: uid, Version: fmt.Sprint(version), Sequence: 1}
}

func goneObject(name string) history.Object {
	return history.Object{Key: configMapKey(name), Gone: true}
}

func newStore(line history.Line) history.Line {
	line.Cursor.StoreEpoch = "another"
	return line
}

func withoutTime(line history.Line) history.Line {
	line.Time = time.Time{}
	return line
}

// TestHistoryChecker_Check runs the checker on good and bad histories. u-deleted is a UID that the workload deleted.
func TestHistoryChecker_Check(t *testing.T) {
	const a = "edge-1-cm-1"
	empty := history.Line{Time: testStart, Op: history.Opened, Cursor: wire.Cursor{StoreEpoch: "s"}}
	for name, tt := range map[string]struct {
		wiped int
		lines []history.Line
		want  []string
	}{
		"a good life": {lines: []history.Line{
			empty, historyLine(history.Replaced, 5, heldObject(a, "u-deleted", 10)), historyLine(history.Applied, 6, heldObject(a, "u-deleted", 12)), historyLine(history.Acked, 6),
			historyLine(history.Opened, 6, heldObject(a, "u-deleted", 12)),
			historyLine(history.Applied, 8, goneObject(a)), historyLine(history.Applied, 9, heldObject(a, "u2", 20)), historyLine(history.Acked, 9),
			historyLine(history.Opened, 10, heldObject(a, "u2", 21)), // saved, but killed before the line was written
		}},
		"a replacement seen at once": {lines: []history.Line{
			empty, historyLine(history.Replaced, 5, heldObject(a, "u-deleted", 10)), historyLine(history.Applied, 6, heldObject(a, "u2", 12)),
		}},
		"a wiped disk": {wiped: 1, lines: []history.Line{
			empty, historyLine(history.Replaced, 5, heldObject(a, "u", 10)), historyLine(history.Acked, 5),
			newStore(historyLine(history.Opened, 0)), newStore(historyLine(history.Replaced, 5, heldObject(a, "u", 10))),
		}},
		"what others own is not judged": {lines: []history.Line{empty, historyLine(history.Applied, 5, history.Object{
			Key: wire.Key{Resource: "nodes", Name: "edge-1"}, UID: "n", Version: "x",
		})}},
		"an older version": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u", 10)), historyLine(history.Applied, 6, heldObject(a, "u", 9))},
			want:  []string{"from version 10 back to 9"},
		},
		"an older version in a snapshot": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u", 10)), historyLine(history.Replaced, 6, heldObject(a, "u", 9))},
			want:  []string{"from version 10 back to 9"},
		},
		"an older version of another object of that name": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u-deleted", 10)), historyLine(history.Applied, 6, heldObject(a, "u2", 9))},
			want:  []string{"from version 10 back to 9"},
		},
		"a deleted object returns": {
			lines: []history.Line{
				empty, historyLine(history.Applied, 5, heldObject(a, "u-deleted", 10)), historyLine(history.Applied, 6, goneObject(a)), historyLine(history.Applied, 7, heldObject(a, "u-deleted", 10)),
			},
			want: []string{"came back"},
		},
		"a deleted object returns with a restart": {
			lines: []history.Line{
				empty, historyLine(history.Applied, 5, heldObject(a, "u-deleted", 10)), historyLine(history.Applied, 6, goneObject(a)), historyLine(history.Opened, 6, heldObject(a, "u-deleted", 10)),
			},
			want: []string{"came back"},
		},
		"an object is removed that nobody deleted": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u", 10)), historyLine(history.Applied, 6, goneObject(a))},
			want:  []string{"nobody had deleted"},
		},
		"an object is removed before anybody deleted it": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u-deleted", 10)), withoutTime(historyLine(history.Applied, 6, goneObject(a)))},
			want:  []string{"nobody had deleted"},
		},
		"an empty snapshot": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u", 10)), historyLine(history.Replaced, 6)},
			want:  []string{"nobody had deleted"},
		},
		"another node's object": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject("edge-2-cm-1", "u", 10))},
			want:  []string{"another node"},
		},
		"a longer name is another node's": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject("edge-11-cm-1", "u", 10))},
			want:  []string{"another node"},
		},
		"acked before it was saved": {
			lines: []history.Line{empty, historyLine(history.Applied, 5), historyLine(history.Acked, 6), historyLine(history.Applied, 6)},
			want:  []string{"acked 6, but only 5"},
		},
		"acked and lost": {
			lines: []history.Line{empty, historyLine(history.Applied, 5), historyLine(history.Applied, 7), historyLine(history.Acked, 7), historyLine(history.Opened, 5)},
			want:  []string{"acked up to 7"},
		},
		"a forgotten cursor": {
			lines: []history.Line{empty, historyLine(history.Applied, 5), historyLine(history.Acked, 5), {Time: testStart, Op: history.Opened, Cursor: wire.Cursor{StoreEpoch: "s"}}},
			want:  []string{"acked up to 5"},
		},
		"an object lost in a restart": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u", 10)), historyLine(history.Opened, 5)},
			want:  []string{"nobody had deleted", "missing after a restart"},
		},
		"a tombstone that was saved before its cursor": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u-deleted", 10)), historyLine(history.Opened, 5)},
		},
		"the cursor goes back": {
			lines: []history.Line{empty, historyLine(history.Applied, 5), historyLine(history.Applied, 4)},
			want:  []string{"from 5 back to 4"},
		},
		"a new store out of nothing": {
			lines: []history.Line{empty, historyLine(history.Applied, 5, heldObject(a, "u", 10)), newStore(historyLine(history.Opened, 0))},
			want:  []string{"nobody wiped"},
		},
		"no beginning": {lines: []history.Line{historyLine(history.Applied, 5)}, want: []string{"does not begin"}},
		"no version":   {lines: []history.Line{empty, historyLine(history.Applied, 5, history.Object{Key: configMapKey(a), UID: "u"})}, want: []string{`version ""`}},
	} {
		t.Run(name, func(t *testing.T) {
			var deletions faults.Deletions
			deletions.RecordAsked("u-deleted")
			judge := faults.NewHistoryChecker("edge-1", &deletions)
			for range tt.wiped {
				judge.AllowNewStore()
			}
			var found []string
			for i := range tt.lines { // one by one: earlier lines count
				found = append(found, judge.Check(tt.lines[i:i+1])...)
			}
			if len(found) != len(tt.want) {
				t.Fatalf("found %q, want %q", found, tt.want)
			}
			for i, want := range tt.want {
				if !strings.Contains(found[i], want) {
					t.Errorf("found %q, want %q", found[i], want)
				}
			}
		})
	}
}

func TestPlan_IsDeterministic(t *testing.T) {
	rig := faults.Targets{
		Edges: []string{"edge-1", "edge-2", "edge-3"}, SmallDisks: []string{"edge-3"}, PowercutDisks: []string{"edge-2"},
		Processes: []string{"cloudcore-1", "cloudcore-2", "hub-1", "hub-2", "hub-3", "apiserver", "etcd"},
		Groups:    [][]string{{"cloudcore-1", "cloudcore-2"}, {"hub-1", "hub-2", "hub-3"}},
	}
	lengths := map[time.Duration]int{}
	seen := map[faults.Kind]int{}
	for round := range uint64(500) {
		length := faults.Length(faults.Random(7, round))
		lengths[length]++
		plan := faults.Plan(faults.Random(7, round), rig, length)
		if again := faults.Plan(faults.Random(7, round), rig, length); !reflect.DeepEqual(plan, again) {
			t.Fatalf("round %d: %v, then %v", round, plan, again)
		}
		targets := map[string]bool{}
		for _, f := range plan {
			seen[f.Kind]++
			if targets[f.Target] || f.At < 0 || f.At+f.Duration > length+100*time.Millisecond || f.Duration <= 0 {
				t.Errorf("round %d: %v", round, plan)
			}
			targets[f.Target] = true
		}
		if steps := faults.Steps(plan); len(plan) == 0 || len(steps) != 2*len(plan) {
			t.Errorf("round %d: %v is done in %v", round, plan, steps)
		}
	}
	if len(seen) != 12 {
		t.Errorf("kinds played: %v", seen)
	}
	if len(lengths) != 2 {
		t.Errorf("lengths played: %v", lengths)
	}
	const length = 8 * time.Second
	if reflect.DeepEqual(faults.Plan(faults.Random(7, 1), rig, length), faults.Plan(faults.Random(8, 1), rig, length)) {
		t.Error("two seeds, one plan")
	}
}
