package writeplan_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
	"github.com/frond-edge/frond/leaf/store/writeplan"
)

func podKey(name string) wire.Key {
	return wire.Key{Resource: "pods", Namespace: "default", Name: name}
}

// newStored returns what the store holds: of the hub, at the sequence 5.
func newStored(state record.State, uid string) *record.Record {
	r := &record.Record{
		Entry: record.Entry{Key: podKey("a"), UID: uid, Version: "5", ClusterEpoch: "c1", Revision: 9, Object: []byte(`{"metadata":{}}`)},
		State: state, Desired: true, LastRemoteSeq: 5, StreamEpoch: "s1",
	}
	r.Derive()
	return r
}

func TestPut(t *testing.T) {
	revision := func(r uint64) *uint64 { return &r }
	for name, tt := range map[string]struct {
		old        *record.Record
		uid        string
		ifRevision *uint64
		changes    int
		err        error
	}{
		"new":                   {nil, "u", revision(0), 1, nil},
		"newer":                 {newStored(record.Live, "u"), "u", revision(9), 1, nil},
		"another of that name":  {newStored(record.Live, "u"), "v", nil, 2, nil},
		"exists":                {newStored(record.Live, "u"), "u", revision(0), 0, writeplan.ErrConflict},
		"changed":               {newStored(record.Live, "u"), "u", revision(8), 0, writeplan.ErrConflict},
		"missing":               {nil, "u", revision(9), 0, writeplan.ErrNotFound},
		"deleted here":          {newStored(record.Gone, "u"), "u", nil, 0, writeplan.ErrConflict},
		"another after it":      {newStored(record.Gone, "u"), "v", nil, 1, nil},
		"deleted by the cloud":  {newStored(record.Tombstone, "u"), "u", revision(0), 1, nil},
		"missing after the end": {newStored(record.Tombstone, "u"), "u", revision(9), 0, writeplan.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			r, changes, err := writeplan.Put(tt.old, podKey("a"), tt.uid, []byte("{}"), tt.ifRevision)
			if !errors.Is(err, tt.err) || len(changes) != tt.changes {
				t.Fatalf("%d changes, %v; want %d, %v", len(changes), err, tt.changes, tt.err)
			}
			if err == nil && (changes[len(changes)-1].Record != r || r.UID != tt.uid || tt.old != nil && r.LastRemoteSeq != 5) {
				t.Errorf("writes %+v", r)
			}
		})
	}
}

func TestDelete(t *testing.T) {
	for uid, want := range map[string]record.State{"u": record.Gone, "": record.Tombstone} {
		if r, err := writeplan.Delete(newStored(record.Live, uid), uid, nil); err != nil || r.State != want || r.LastRemoteSeq != 5 {
			t.Errorf("uid %q: %+v, %v; want %s", uid, r, err, want)
		}
	}
	if _, err := writeplan.Delete(newStored(record.Gone, "u"), "u", nil); !errors.Is(err, writeplan.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	if _, err := writeplan.Delete(newStored(record.Live, "u"), "v", nil); !errors.Is(err, writeplan.ErrConflict) {
		t.Errorf("another object: %v", err)
	}
}

// What each message makes of each stored state. A reason stands for a message that is ignored.
func TestApplyMessages(t *testing.T) {
	at := writeplan.Position{Cursor: wire.Cursor{StreamEpoch: "s1", Sequence: 3}, UpTo: 8}
	message := func(op wire.Operation, seq uint64, uid string) wire.Message {
		return wire.Message{Key: podKey("a"), Op: op, UID: uid, ClusterEpoch: "c1", Sequence: seq, Object: []byte(`{"metadata":{}}`)}
	}
	local := newStored(record.Live, "u")
	local.Desired = false
	for name, tt := range map[string]struct {
		old  *record.Record
		m    wire.Message
		want string
	}{
		"new":                    {nil, message(wire.Apply, 6, "u"), "live"},
		"below the cursor":       {nil, message(wire.Apply, 3, "u"), "stale"},
		"repeated":               {newStored(record.Live, "u"), message(wire.Apply, 5, "u"), "stale"},
		"newer":                  {newStored(record.Live, "u"), message(wire.Apply, 6, "u"), "live"},
		"another":                {newStored(record.Live, "u"), message(wire.Apply, 6, "v"), "tombstone live"},
		"deleted here":           {newStored(record.Gone, "u"), message(wire.Apply, 6, "u"), "deleted-here"},
		"another after it":       {newStored(record.Gone, "u"), message(wire.Apply, 6, "v"), "live"},
		"tombstone":              {newStored(record.Live, "u"), message(wire.Delete, 6, "v"), "tombstone"},
		"tombstone of the own":   {local, message(wire.Delete, 6, "v"), "other-uid"},
		"tombstone of none":      {nil, message(wire.Delete, 6, "u"), "absent"},
		"tombstone ahead":        {nil, message(wire.Delete, 9, "u"), "tombstone"},
		"an unknown operation":   {nil, message("patch", 6, "u"), "invalid"},
		"late after a tombstone": {newStored(record.Tombstone, "u"), message(wire.Apply, 4, "u"), "stale"},
	} {
		t.Run(name, func(t *testing.T) {
			p := writeplan.ApplyMessages([]wire.Message{tt.m}, at, func(wire.Key) *record.Record { return tt.old }, nil)
			var got []any
			for _, c := range p.Changes {
				got = append(got, c.Record.State)
			}
			for reason := range p.Ignored {
				got = append(got, reason)
			}
			if diff := cmp.Diff(tt.want+"\n", fmt.Sprintln(got...)); diff != "" || p.Applied+len(p.Ignored) != 1 {
				t.Errorf("plan (-want +got):\n%s", diff)
			}
		})
	}
}

// A message that names its object's UID and version is not parsed; any other one is.
func TestApplyMessages_ReadsIdentityFromHeaders(t *testing.T) {
	for name, tt := range map[string]struct {
		uid, version, object string
		applied              int
	}{
		"named":            {"u", "6", `{"kind":"Pod"}`, 1},
		"named, no object": {"u", "6", `null`, 0},
		"named, empty":     {"u", "6", ` `, 0},
		"no UID":           {"", "6", `{"metadata":{}}`, 1},
		"no UID, no name":  {"", "6", `{"kind":"Pod"}`, 0},
		"no version":       {"u", "", `{"metadata":`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := wire.Message{Key: podKey("a"), Op: wire.Apply, UID: tt.uid, Version: tt.version, Sequence: 6, Object: []byte(tt.object)}
			p := writeplan.ApplyMessages([]wire.Message{m}, writeplan.Position{UpTo: 6}, func(wire.Key) *record.Record { return nil }, nil)
			if p.Applied != tt.applied || len(p.Changes) != tt.applied || p.Applied == 1 && p.Changes[0].Record.UID != tt.uid {
				t.Errorf("%d applied, %d changes; want %d", p.Applied, len(p.Changes), tt.applied)
			}
		})
	}
}
