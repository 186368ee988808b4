package hubconf_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// Cloudcores that start at once on three servers, one of which has a consumer from before names were random, agree on one consumer per
// stream.
func TestHub_CloudcoresAgreeOnOneSharedConsumer(t *testing.T) {
	w := startTestHub(t)
	for _, stream := range []string{subject.ReportStream, subject.EventStream} {
		if err := w.js.DeleteConsumer(t.Context(), stream, w.onlyConsumer(stream).CachedInfo().Name); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("a consumer as it was", func() bool {
		_, err := w.js.CreateConsumer(t.Context(), subject.ReportStream, jetstream.ConsumerConfig{Durable: "cloudcore", AckPolicy: jetstream.AckExplicitPolicy})
		return err == nil
	})
	var g errgroup.Group
	for i := range 3 {
		js, err := jetstream.New(w.hub.Connect(i, "cloudcore"))
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() error { return topology.Ensure(t.Context(), js, topology.HubTopology(3, subject.Layout{})) })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{subject.ReportStream, subject.EventStream} {
		s, err := w.js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for name := range s.ConsumerNames(t.Context()).Name() {
			names = append(names, name)
		}
		if len(names) != 1 || !strings.HasPrefix(names[0], "cloudcore-") {
			t.Errorf("%s has the consumers %q", stream, names)
		}
	}
}
