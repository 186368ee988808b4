package subject_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// All nodes of a cell have one partition, and the cell's crossings lead to its stream alone.
func TestLayout_CrossingsOfACellLeadToItsPartition(t *testing.T) {
	l := subject.Layout{Cells: 8, Partitions: 3}
	streams := map[string]string{}
	for i := range 200 {
		node := fmt.Sprint("gw-", i)
		cell, stream := subject.CellAccount(node, l.Cells), l.DesiredStream(node)
		if before, seen := streams[cell]; seen && before != stream {
			t.Errorf("%s in %s has %s, another node there %s", node, cell, stream, before)
		}
		streams[cell] = stream
	}
	used := map[string]int{}
	for _, c := range subject.Crossings(l) {
		if !strings.HasPrefix(c.Local, "consumer.") {
			continue
		}
		used[c.To]++
		if !strings.Contains(c.Subject, "."+streams[c.To]+".") {
			t.Errorf("%s reaches %s as %s; its nodes are in %s", c.To, c.Subject, c.Local, streams[c.To])
		}
	}
	if len(used) != l.Cells || len(streams) != l.Cells {
		t.Errorf("crossings of %d cells, nodes in %d, want %d", len(used), len(streams), l.Cells)
	}
}

// A hub with one partition has the names of the versions that knew no other.
func TestLayout_OnePartitionKeepsItsNames(t *testing.T) {
	key := wire.Key{Resource: "pods", Namespace: "default", Name: "web"}
	for _, l := range []subject.Layout{{}, {Cells: 64}, {Cells: 64, Partitions: 1}} {
		for _, node := range []string{"gw-1", "gw-17.plant"} {
			if got := l.DesiredSubject(node, key); got != subject.Of(subject.Desired, node, key) {
				t.Errorf("%v: %s", l, got)
			}
			if got := l.DesiredStream(node); got != "DESIRED-0" {
				t.Errorf("%v: %s", l, got)
			}
		}
	}
	if conf := subject.AccountsConfig(subject.Layout{Cells: 2}, nil); strings.Contains(conf, "mappings") {
		t.Errorf("one partition is told:\n%s", conf)
	}
}

func TestLayout_Validate(t *testing.T) {
	for _, tt := range []struct {
		l  subject.Layout
		ok bool
	}{
		{subject.Layout{}, true},
		{subject.Layout{Cells: 4, Partitions: 4}, true},
		{subject.Layout{Cells: 4, Partitions: 5}, false},
		{subject.Layout{Cells: 4, Partitions: -1}, false},
		{subject.Layout{Cells: 400, Partitions: subject.MaxPartitions + 1}, false},
	} {
		if err := tt.l.Validate(); (err == nil) != tt.ok {
			t.Errorf("%v: %v", tt.l, err)
		}
	}
}

func TestParseLayout(t *testing.T) {
	l := subject.Layout{Cells: 64, Partitions: 3}
	if got, err := subject.ParseLayout(l.String()); err != nil || got != l {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "3", "64 cells, 3 partitions or more", "64 cells, -3 partitions", "64 cells"} {
		if got, err := subject.ParseLayout(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// A node acks what its own consumer delivered, on whatever partition.
func TestCutAck(t *testing.T) {
	for reply, want := range map[string]string{
		"$JS.ACK.DESIRED-0.gw-17_plant.1.5.5.1.0":  "1.5.5.1.0",
		"$JS.ACK.DESIRED-12.gw-17_plant.1.5.5.1.0": "1.5.5.1.0",
		"$JS.ACK.DESIRED-0.gw-18.1.5.5.1.0":        "",
		"$JS.ACK.DESIRED-x.gw-17_plant.1.5.5.1.0":  "",
		"$JS.ACK.DESIRED-.gw-17_plant.1.5.5.1.0":   "",
		"$JS.ACK.REPORT-0.gw-17_plant.1.5.5.1.0":   "",
		"$JS.ACK.DESIRED-0.gw-17_plant":            "",
		"_INBOX.x":                                 "", "": "",
	} {
		if got, ok := subject.CutAck(reply, "gw-17.plant"); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", reply, got, ok)
		}
	}
}

// What a subject of the hub is named after is found again, and no other subject names a node.
func TestNodeOf(t *testing.T) {
	for _, node := range []string{"gw-1", "gw-17.plant"} {
		for _, s := range []string{subject.SampleSubject(node, "default", "boiler", "temp"), subject.MessageSubject(node, "a/user/b")} {
			if got, err := subject.NodeOf(s); err != nil || got != node {
				t.Errorf("%s: %q, %v", s, got, err)
			}
		}
	}
	for _, s := range []string{"", "telemetry", "telemetry.", "telemetry..x", "telemetry.gw-1", "telemetry.=zz.x"} {
		if got, err := subject.NodeOf(s); err == nil {
			t.Errorf("%q names the node %q", s, got)
		}
	}
}
