package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// Old changes are forgotten, and no more than maxRecent are remembered.
func TestChangeLog_IsBounded(t *testing.T) {
	var log changeLog
	n, other := NewNode("a", nil), NewNode("b", nil)
	began := time.Unix(1000, 0)
	log.add(other, wire.Key{Name: "old"}, began)
	for i := range maxRecent + 10 {
		log.add(n, wire.Key{Name: fmt.Sprint(i)}, began.Add(time.Duration(i)*time.Microsecond))
	}
	if len(log.changes) != maxRecent || log.changes[0].key.Name != "10" {
		t.Errorf("%d changes, the first is %s", len(log.changes), log.changes[0].key.Name)
	}
	if nodes := log.nodesSince(began.Add(-time.Hour)); len(nodes) != 1 || nodes[0] != n {
		t.Errorf("nodes %v", nodes)
	}
	late := began.Add(time.Hour)
	log.add(other, wire.Key{Name: "new"}, late)
	if len(log.changes) != 1 {
		t.Errorf("%d changes are left", len(log.changes))
	}
	for _, c := range log.since(late.Add(-recentPeriod)) {
		if c.node != other || c.key.Name != "new" {
			t.Errorf("%s of %s", c.key.Name, c.node.Name())
		}
	}
	if nodes := log.nodesSince(late); len(nodes) != 0 {
		t.Errorf("nodes after the last change: %v", nodes)
	}
}
