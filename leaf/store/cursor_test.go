package store_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	cursorSubject = "$KV.store.meta.cursor"
	cursorHeader  = "Frond-Cursor"
)

// A commit writes one record for each change, and the cursor in the last. The cursor has a record of its own only where no record can
// carry it.
func TestCursor_RecordsPerCommit(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	must(t, n.Replace(ctx, nil, "s1", 0))
	for _, step := range []struct {
		name     string
		messages []wire.Message
		sequence uint64
		records  uint64
	}{
		{"an object", []wire.Message{applyMessage(1, "a", "u1", "1")}, 1, 1},
		{"its next state", []wire.Message{applyMessage(2, "a", "u1", "2")}, 2, 1},
		{"three objects", []wire.Message{applyMessage(3, "a", "u1", "3"), applyMessage(4, "b", "u2", "4"), applyMessage(5, "c", "u3", "5")}, 5, 3},
		{"another object of that name", []wire.Message{applyMessage(6, "a", "u6", "6")}, 6, 2},
		{"a deletion, which expires", []wire.Message{deleteMessage(7, "b", "u2")}, 7, 2},
		{"a deletion before an object", []wire.Message{deleteMessage(8, "c", "u3"), applyMessage(9, "d", "u4", "9")}, 9, 2},
		{"nothing for this node", nil, 12, 1},
		{"an object ahead of the cursor", []wire.Message{applyMessage(15, "e", "u5", "15")}, 12, 1},
		{"a repeat", []wire.Message{applyMessage(9, "d", "u4", "9")}, 12, 0},
	} {
		before := n.Revision()
		must(t, n.Apply(ctx, step.messages, step.sequence))
		n.wantCursor("s1", step.sequence)
		if wrote := n.Revision() - before; wrote != step.records {
			t.Errorf("%s: %d records, want %d", step.name, wrote, step.records)
		}
	}
	n = n.restart(store.Config{}, nil)
	n.wantCursor("s1", 12)
}

// recording holds every message that a store wrote to its bucket, in order, and what the store was after each commit.
type recording struct {
	messages []*nats.Msg
	commits  []recordedCommit
}

type recordedCommit struct {
	what     string
	messages int // up to and with the last of this commit
	cursor   wire.Cursor
	content  map[string]string
}

// recordStore runs steps on an empty store.
func recordStore(t *testing.T, steps func(n *node, committed func(what string))) *recording {
	t.Helper()
	n := newNode(t, store.Config{})
	sub, err := n.js.Conn().SubscribeSync("$KV.store.>")
	must(t, err)
	must(t, n.js.Conn().Flush())
	if s, err := n.js.Stream(t.Context(), "KV_store"); err != nil {
		t.Fatal(err)
	} else if err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := n.Revision()
	n.openStore(store.Config{})
	r := &recording{}
	committed := func(what string) {
		t.Helper()
		for uint64(len(r.messages)) < n.Revision()-first {
			m, err := sub.NextMsg(10 * time.Second)
			must(t, err)
			r.messages = append(r.messages, &nats.Msg{Subject: m.Subject, Data: m.Data, Header: frondHeaders(m.Header)})
		}
		r.commits = append(r.commits, recordedCommit{what, len(r.messages), n.Cursor(), storeContent(n)})
	}
	steps(n, committed)
	must(t, sub.Unsubscribe())
	return r
}

// frondHeaders returns the headers of a stored message without those that only say how it was published.
func frondHeaders(header nats.Header) nats.Header {
	kept := nats.Header{}
	for name, values := range header {
		if !strings.HasPrefix(name, "Nats-") || name == "Nats-TTL" {
			kept[name] = values
		}
	}
	return kept
}

// emptyBucket returns a node whose bucket exists and is empty.
func emptyBucket(t *testing.T) *node {
	t.Helper()
	n := newNode(t, store.Config{})
	s, err := n.js.Stream(t.Context(), "KV_store")
	must(t, err)
	must(t, s.Purge(t.Context()))
	return n
}

// writeRaw stores a message as it is.
func (n *node) writeRaw(m *nats.Msg) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
	defer cancel()
	_, err := n.js.PublishMsg(ctx, m)
	must(n.t, err)
}

// withoutCursor returns a message as an older version writes it: no cursor in its headers.
func withoutCursor(m *nats.Msg) *nats.Msg {
	old := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: maps.Clone(m.Header)}
	old.Header.Del(cursorHeader)
	return old
}

// writeHistory makes commits of every kind, so that records that carry the cursor are replaced in all ways.
func writeHistory(n *node, committed func(what string)) {
	t, ctx := n.t, n.t.Context()
	t.Helper()
	apply := func(what string, sequence uint64, messages ...wire.Message) {
		t.Helper()
		must(t, n.Apply(ctx, messages, sequence))
		committed(what)
	}
	put := func(what, name, uid, data string) {
		t.Helper()
		_, err := n.Put(ctx, configMapKey(name), objectJSON(uid, data), nil)
		must(t, err)
		committed(what)
	}
	remove := func(what, name, uid string) {
		t.Helper()
		_, err := n.Delete(ctx, configMapKey(name), uid, nil)
		must(t, err)
		committed(what)
	}
	committed("epoch")
	must(t, n.Replace(ctx, []wire.Message{applyMessage(1, "a", "u1", "1"), applyMessage(2, "b", "u2", "2")}, "s1", 2))
	committed("first snapshot")
	apply("a carries", 3, applyMessage(3, "a", "u1", "3"))
	apply("a carries again", 4, applyMessage(4, "a", "u1", "4"))
	put("the node replaces the carrier", "a", "u1", "status")
	apply("b carries", 5, applyMessage(5, "b", "u2", "5"))
	remove("the node deletes the carrier", "b", "u2")
	apply("the cloud confirms", 6, deleteMessage(6, "b", "u2"))
	apply("c carries", 7, applyMessage(7, "c", "u3", "7"))
	apply("the cloud deletes the carrier", 8, deleteMessage(8, "c", "u3"))
	apply("several, the last one a deletion", 11, applyMessage(9, "d", "u4", "9"), applyMessage(10, "a", "u1", "10"), deleteMessage(11, "d", "u4"))
	apply("another object in the carrier's place", 13, applyMessage(12, "a", "u1", "12"), applyMessage(13, "a", "u5", "13"))
	apply("nothing for this node", 20)
	put("own", "own", "", "mine")
	remove("own, unknown to the cloud", "own", "")
	apply("ahead", 20, applyMessage(23, "e", "u6", "23"), deleteMessage(24, "f", "u7"))
	apply("the gap is closed", 24, applyMessage(21, "g", "u8", "21"), applyMessage(22, "h", "u9", "22"))
	var batch []wire.Message
	for i := range uint64(20) { // atomic
		batch = append(batch, applyMessage(25+i, fmt.Sprint("batch", i%15), fmt.Sprint("v", i%15), fmt.Sprint(25+i)))
	}
	apply("an atomic batch", 44, batch...)
	batch = nil
	for i := range uint64(20) {
		batch = append(batch, applyMessage(45+i, fmt.Sprint("batch", i%15), fmt.Sprint("w", i%15), fmt.Sprint(45+i)))
	}
	apply("an atomic batch of other objects", 64, batch...)
	must(t, n.Replace(ctx, []wire.Message{applyMessage(3, "a", "u5", "rolled back"), applyMessage(4, "e", "u6", "4")}, "s1", 10))
	committed("the stream was rolled back")
	apply("after it", 11, applyMessage(11, "a", "u5", "11"))
	must(t, n.Replace(ctx, []wire.Message{applyMessage(1, "a", "u5", "rebuilt")}, "s2", 1))
	committed("the stream was created again")
	apply("in the new stream", 2, applyMessage(2, "a", "u5", "new"))
}

// The crash model: the disk holds the messages of all commits up to some message. Whatever message that is, the store is whole, and its
// cursor is the one of the last complete commit.
func TestCursor_AfterCrashAtEachMessage(t *testing.T) {
	r := recordStore(t, writeHistory)
	n := emptyBucket(t)
	complete := recordedCommit{}
	next := 0
	for i, m := range r.messages {
		n.writeRaw(m)
		ends := i+1 == r.commits[next].messages
		if ends {
			complete = r.commits[next]
			next++
		}
		if complete.cursor.StoreEpoch == "" {
			continue
		}
		revision := n.revisionOfBucket()
		n.openStore(store.Config{})
		if n.Cursor() != complete.cursor || n.Revision() != revision {
			t.Fatalf("message %d, after %q: cursor %+v at %d, want %+v at %d", i, complete.what, n.Cursor(), n.Revision(), complete.cursor, revision)
		}
		if ends && !maps.Equal(storeContent(n), complete.content) {
			t.Errorf("after %q: %v, want %v", complete.what, storeContent(n), complete.content)
		}
	}
	if next != len(r.commits) {
		t.Errorf("%d commits, want %d", next, len(r.commits))
	}
}

func (n *node) revisionOfBucket() uint64 {
	n.t.Helper()
	s, err := n.js.Stream(n.t.Context(), "KV_store")
	must(n.t, err)
	return s.CachedInfo().State.LastSeq
}

// An older version reads the cursor's own record, and no header. At no moment that cursor is newer than the store, or of another stream.
func TestCursor_OwnRecordIsNeverAhead(t *testing.T) {
	r := recordStore(t, writeHistory)
	var own, current wire.Cursor
	moved := 0
	for i, m := range r.messages {
		if len(r.commits) > 0 && i >= r.commits[0].messages {
			current = r.commits[0].cursor
			r.commits = r.commits[1:]
		}
		if m.Subject != cursorSubject {
			continue
		}
		must(t, json.Unmarshal(m.Data, &own))
		moved++
		if i+1 == r.commits[0].messages || current.StoreEpoch == "" {
			current = r.commits[0].cursor // the last message of its commit, or the store is created
		}
		if own.StoreEpoch != current.StoreEpoch || own.StreamEpoch != current.StreamEpoch || own.Sequence > current.Sequence {
			t.Errorf("message %d: %+v, but the store is at %+v", i, own, current)
		}
	}
	if moved < 5 {
		t.Errorf("%d records of the cursor", moved)
	}
}

// An older version continues on this version's bucket, from the cursor's own record, and writes as it always did. This version then
// believes what the older one believed.
func TestCursor_OlderVersionContinues(t *testing.T) {
	r := recordStore(t, func(n *node, committed func(string)) {
		must(t, n.Replace(t.Context(), []wire.Message{applyMessage(1, "a", "u1", "1")}, "s1", 1))
		must(t, n.Apply(t.Context(), []wire.Message{applyMessage(2, "b", "u2", "2")}, 2))
		must(t, n.Apply(t.Context(), []wire.Message{applyMessage(3, "a", "u1", "3")}, 3))
		committed("this version")
		_, err := n.Put(t.Context(), configMapKey("own"), objectJSON("", "mine"), nil)
		must(t, err)
		committed("written by the older version")
	})
	n := emptyBucket(t)
	for _, m := range r.messages[:r.commits[0].messages] {
		n.writeRaw(m)
	}
	for _, m := range r.messages[r.commits[0].messages:] {
		n.writeRaw(withoutCursor(m))
	}
	n.openStore(store.Config{})
	n.wantCursor("s1", 1)
	n.wantData("own", "mine")
	n.wantData("a", "3")
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(2, "b", "u2", "2"), applyMessage(3, "a", "u1", "3")}, 3))
	n.openStore(store.Config{})
	n.wantCursor("s1", 3)
}

// A cursor that an earlier record carries is older than a later reset of the store, whatever its sequence. Without the reset's own record
// nothing is certain.
func TestCursor_ResetIsNotUndone(t *testing.T) {
	r := recordStore(t, func(n *node, committed func(string)) {
		must(t, n.Replace(t.Context(), nil, "s1", 0))
		must(t, n.Apply(t.Context(), []wire.Message{applyMessage(60, "a", "u1", "60")}, 60))
		must(t, n.Apply(t.Context(), []wire.Message{applyMessage(61, "b", "u2", "61")}, 61))
		must(t, n.Replace(t.Context(), []wire.Message{applyMessage(5, "a", "u1", "60"), applyMessage(6, "b", "u2", "rolled back")}, "s1", 40))
		committed("the stream was rolled back")
		_, err := n.Put(t.Context(), configMapKey("own"), objectJSON("", "mine"), nil)
		must(t, err)
		committed("written by an older version")
	})
	n := emptyBucket(t)
	for i, m := range r.messages {
		if i >= r.commits[0].messages {
			m = withoutCursor(m)
		}
		n.writeRaw(m)
	}
	n.openStore(store.Config{})
	n.wantCursor("s1", 40)
	s, err := n.js.Stream(t.Context(), "KV_store")
	must(t, err)
	must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(cursorSubject)))
	n.openStore(store.Config{})
	if c := n.Cursor(); c.StreamEpoch != "" {
		t.Errorf("cursor %+v after its record was lost", c)
	}
}

// Without its own record the cursor is still certain if the last message carries it.
func TestCursor_OwnRecordIsLost(t *testing.T) {
	n := newNode(t, store.Config{})
	must(t, n.Replace(t.Context(), nil, "s1", 0))
	must(t, n.Apply(t.Context(), []wire.Message{applyMessage(7, "a", "u1", "7")}, 7))
	s, err := n.js.Stream(t.Context(), "KV_store")
	must(t, err)
	must(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(cursorSubject)))
	n.openStore(store.Config{})
	n.wantCursor("s1", 7)
}

// A damaged header of the newest record is damage of that record. Its store does not fall back to an older cursor as if it were whole.
func TestCursor_DamagedHeader(t *testing.T) {
	for name, change := range map[string]func(string) string{
		"newer":     func(line string) string { return strings.Replace(line, " 7 ", " 8 ", 1) },
		"cut":       func(line string) string { return line[:len(line)-3] },
		"one word":  func(string) string { return "7" },
		"no epochs": func(line string) string { return line[strings.LastIndexByte(line, ' '):] },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, store.Config{})
			must(t, n.Replace(t.Context(), nil, "s1", 0))
			must(t, n.Apply(t.Context(), []wire.Message{applyMessage(6, "b", "u2", "6")}, 6))
			must(t, n.Apply(t.Context(), []wire.Message{applyMessage(7, "a", "u1", "7")}, 7))
			epoch := n.Cursor().StoreEpoch
			s, err := n.js.Stream(t.Context(), "KV_store")
			must(t, err)
			last, err := s.GetLastMsgForSubject(t.Context(), configMapSubject+"a")
			must(t, err)
			m := &nats.Msg{Subject: last.Subject, Data: last.Data, Header: frondHeaders(last.Header)}
			line := change(m.Header.Get(cursorHeader))
			if line == m.Header.Get(cursorHeader) {
				t.Fatalf("header %q is not changed", line)
			}
			m.Header.Set(cursorHeader, line)
			n.writeRaw(m)
			n.openStore(store.Config{})
			if c := n.Cursor(); c != (wire.Cursor{StoreEpoch: epoch}) {
				t.Errorf("cursor %+v, want only epoch %s", c, epoch)
			}
			n.wantData("a", "")
			n.wantData("b", "6")
		})
	}
}

// Epochs are random or dates today. Other text survives the header too.
func TestCursor_AnyEpoch(t *testing.T) {
	for _, epoch := range []string{"a b", `"quoted" \`, "ä/∞"} {
		n := newNode(t, store.Config{})
		must(t, n.Replace(t.Context(), nil, epoch, 1))
		must(t, n.Apply(t.Context(), []wire.Message{applyMessage(2, "a", "u1", "2")}, 2))
		n.openStore(store.Config{})
		n.wantCursor(epoch, 2)
	}
}
