package partitions

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/hubtest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func openRegistry(t *testing.T, nc *nats.Conn) (jetstream.JetStream, jetstream.KeyValue) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	registry, err := js.KeyValue(t.Context(), subject.RegistryBucket)
	if err != nil {
		t.Fatal(err)
	}
	return js, registry
}

func TestAgree_NewHubIsRecordedOnce(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.PartitionedHub(t, 2))
	js, registry := openRegistry(t, nc)
	for _, name := range streamstest.Layout(2).DesiredStreams() { // as a hub is before its first cloudcore
		if err := js.DeleteStream(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Agree(t.Context(), nc, registry, streamstest.Layout(2)); err != nil {
			t.Fatal(err)
		}
	}
	if entry, err := registry.Get(t.Context(), recordKey); err != nil || string(entry.Value()) != streamstest.Layout(2).String() || entry.Revision() != 1 {
		t.Errorf("recorded %v, %v", entry, err)
	}
}

// The hub of an earlier version has one partition and no record; nothing changes there.
func TestAgree_HubOfEarlierVersion(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	_, registry := openRegistry(t, nc)
	if err := Agree(t.Context(), nc, registry, streamstest.Layout(1)); err != nil {
		t.Fatal(err)
	}
	if err := Agree(t.Context(), nc, registry, streamstest.Layout(1)); err != nil {
		t.Fatal(err)
	}
}

// A cloudcore does not start on streams that were built for another layout, nor on a server that is configured for another one.
func TestAgree_RefusesAnotherLayout(t *testing.T) {
	one, two := streamstest.Connect(t, streamstest.Hub(t)), streamstest.Connect(t, streamstest.PartitionedHub(t, 2))
	_, recordOfOne := openRegistry(t, one)
	_, recordOfTwo := openRegistry(t, two)
	if err := Agree(t.Context(), one, recordOfOne, streamstest.Layout(1)); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"the server has one partition":              Agree(t.Context(), one, recordOfOne, streamstest.Layout(2)),
		"the server has two":                        Agree(t.Context(), two, recordOfTwo, streamstest.Layout(1)),
		"the server has two of other cells":         Agree(t.Context(), two, recordOfTwo, subject.Layout{Cells: 7, Partitions: 2}),
		"the record has one":                        Agree(t.Context(), two, recordOfOne, streamstest.Layout(2)),
		"the streams are older than any record":     Agree(t.Context(), two, recordOfTwo, streamstest.Layout(2)),
		"the record has one partition, other cells": Agree(t.Context(), one, recordOfOne, subject.Layout{Cells: 7}),
	} {
		if !errors.Is(err, ErrOther) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A replica that was away while the streams were built anew does not publish on.
func TestKeeper_EndsWhenTheRecordChanges(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	_, registry := openRegistry(t, nc)
	if err := Agree(t.Context(), nc, registry, streamstest.Layout(1)); err != nil {
		t.Fatal(err)
	}
	k, err := NewKeeper(nc, registry, streamstest.Layout(1), func(string) bool { return true }, prometheus.NewRegistry(), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.PutString(t.Context(), recordKey, streamstest.Layout(2).String()); err != nil {
		t.Fatal(err)
	}
	if err := k.look(t.Context()); !errors.Is(err, ErrOther) {
		t.Errorf("another record: %v", err)
	}
}

// Whatever servers lead the partitions, after some looks each of three leads one.
func TestKeeper_SpreadsLeaders(t *testing.T) {
	layout := subject.Layout{Cells: 4, Partitions: 3}
	nc := hubtest.StartPartitioned(t, 3, layout.Cells, layout.Partitions).Connect(0, "cloudcore")
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(3, layout)); err != nil {
		t.Fatal(err)
	}
	_, registry := openRegistry(t, nc)
	if _, err := registry.PutString(t.Context(), recordKey, layout.String()); err != nil {
		t.Fatal(err)
	}
	balances := false
	k, err := NewKeeper(nc, registry, layout, func(string) bool { return balances }, prometheus.NewRegistry(), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range layout.DesiredStreams() { // pile them up
		kit.Eventually(t, name+" is led by hub-1", func() bool {
			stream, err := js.Stream(t.Context(), name)
			if err != nil || stream.CachedInfo().Cluster.Leader == "hub-1" {
				return err == nil
			}
			_ = k.move(t.Context(), move{stream: name, to: "hub-1"}) // again until it is
			return false
		})
	}
	if err := k.look(t.Context()); err != nil || k.seen != nil {
		t.Fatalf("a replica that does not own the balance looked: %v, %v", k.seen, err)
	}
	balances = true
	kit.Eventually(t, "each server leads one", func() bool {
		if err := k.look(t.Context()); err != nil {
			return false
		}
		count := countLeaders(k.seen)
		return count["hub-1"] == 1 && count["hub-2"] == 1 && count["hub-3"] == 1
	})
}
