package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

func TestWatchSeesEachChangeOnce(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	must(t, n.Replace(ctx, []wire.Message{applyMessage(1, "a", "u1", "1")}, "s1", 1))
	_, from := n.List("", "configmaps", "")
	w, err := n.Watch("", "configmaps", "", from)
	must(t, err)
	defer w.Stop()
	elsewhere, err := n.Watch("", "configmaps", "kube-system", from)
	must(t, err)
	defer elsewhere.Stop()

	must(t, n.Apply(ctx, []wire.Message{
		applyMessage(2, "a", "u1", "2"), applyMessage(3, "b", "u2", "3"), deleteMessage(4, "a", "u1"), applyMessage(5, "a", "u3", "5"), applyMessage(6, "a", "u4", "6"),
	}, 6))
	_, err = n.Put(ctx, wire.Key{Resource: "pods", Namespace: "default", Name: "p"}, objectJSON("p", ""), nil)
	must(t, err)
	_, err = n.Delete(ctx, configMapKey("b"), "", nil)
	must(t, err)

	var got []string
	last := from
	for range 7 {
		e := nextEvent(t, w)
		if e.Entry.Revision <= last {
			t.Errorf("revision %d after %d", e.Entry.Revision, last)
		}
		last = e.Entry.Revision
		prev := "-"
		if e.Prev != nil {
			prev = e.Prev.UID
		}
		got = append(got, fmt.Sprint(e.Type, " ", e.Entry.Key.Name, " ", e.Entry.UID, " ", prev))
		if len(e.Entry.Object) == 0 {
			t.Errorf("%s without an object", e.Type)
		}
	}
	want := []string{
		"MODIFIED a u1 u1", "ADDED b u2 -", "DELETED a u1 u1", "ADDED a u3 -", "DELETED a u3 u3", "ADDED a u4 -", "DELETED b u2 u2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if revision := n.Revision(); last != revision {
		t.Errorf("last event at revision %d, store at %d", last, revision)
	}
	again, err := n.Watch("", "configmaps", "default", from)
	must(t, err)
	defer again.Stop()
	if e := nextEvent(t, again); e.Type != store.Modified || e.Entry.UID != "u1" {
		t.Errorf("replay begins with %s %s", e.Type, e.Entry.UID)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := elsewhere.Next(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("event of another namespace: %v", err)
	}
}

func TestWatchTooOld(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{})
	n = n.restart(store.Config{Window: 3}, nil) // events from before are not kept
	_, err := n.Watch("", "configmaps", "", n.Revision()+1)
	wantErr(t, err, store.ErrGone)
	opened := n.Revision()
	_, err = n.Watch("", "configmaps", "", opened-1)
	wantErr(t, err, store.ErrGone)

	slow, err := n.Watch("", "configmaps", "", opened)
	must(t, err)
	defer slow.Stop()
	idle, err := n.Watch("", "pods", "", opened)
	must(t, err)
	defer idle.Stop()
	var revisions []uint64
	for i := range 4 {
		e, err := n.Put(ctx, configMapKey("a"), objectJSON("u", fmt.Sprint(i)), nil)
		must(t, err)
		revisions = append(revisions, e.Revision)
	}
	_, err = slow.Next(ctx)
	wantErr(t, err, store.ErrGone)
	wantErr(t, slow.Err(), store.ErrGone)
	_, err = n.Watch("", "configmaps", "", opened)
	wantErr(t, err, store.ErrGone)
	w, err := n.Watch("", "configmaps", "", revisions[0])
	must(t, err)
	defer w.Stop()
	if e := nextEvent(t, w); e.Entry.Revision != revisions[1] {
		t.Errorf("revision %d, want %d", e.Entry.Revision, revisions[1])
	}
	// A watcher of a quiet resource does not count as slow.
	_, err = n.Put(ctx, wire.Key{Resource: "pods", Namespace: "default", Name: "p"}, objectJSON("p", ""), nil)
	must(t, err)
	if e := nextEvent(t, idle); e.Entry.Key.Name != "p" {
		t.Errorf("event %+v", e)
	}
}

func TestWatchWindowBytes(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{WindowBytes: 1000})
	opened := n.Revision()
	for i := range 30 {
		_, err := n.Put(ctx, configMapKey("a"), objectJSON("u", fmt.Sprintf("%0100d", i)), nil)
		must(t, err)
	}
	_, err := n.Watch("", "configmaps", "", opened)
	wantErr(t, err, store.ErrGone)
	_, err = n.Watch("", "configmaps", "", n.Revision()-3)
	must(t, err)
}

// An unread watcher blocks neither writes nor other watchers; its channel closes.
func TestWatchChannel(t *testing.T) {
	ctx, n := t.Context(), newNode(t, store.Config{Window: 8})
	stuck, err := n.Watch("", "configmaps", "", n.Revision())
	must(t, err)
	defer stuck.Stop()
	stuckEvents := stuck.Events()
	reader, err := n.Watch("", "configmaps", "", n.Revision())
	must(t, err)
	for i := range 50 {
		want := fmt.Sprint(i)
		_, err := n.Put(ctx, configMapKey("a"), objectJSON("u", want), nil)
		must(t, err)
		e := <-reader.Events()
		if string(e.Entry.Object) != string(objectJSON("u", want)) {
			t.Fatalf("event %s, want %s", e.Entry.Object, want)
		}
	}
	reader.Stop()
	reader.Stop()
	if _, ok := <-reader.Events(); ok {
		t.Error("event after Stop")
	}
	if err := reader.Err(); err != nil {
		t.Errorf("error after Stop: %v", err)
	}
	seen := 0
	for range stuckEvents {
		seen++
	}
	if seen > 2 {
		t.Errorf("a watcher that was 50 events late got %d before the end", seen)
	}
	wantErr(t, stuck.Err(), store.ErrGone)
}
