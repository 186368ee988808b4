package cloud

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/membership"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// publishingReplica is the part of a cloudcore that publishes.
type publishingReplica struct {
	nc      *nats.Conn
	members *membership.Members
	engine  *desired.Engine
	stop    func()
}

func startReplica(b *testing.B, s *clusterFixture, id string) *publishingReplica {
	b.Helper()
	nc := streamstest.Connect(b, s.hub)
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	kv, err := js.KeyValue(b.Context(), subject.MembersBucket)
	if err != nil {
		b.Fatal(err)
	}
	objects, err := podcache.New(s.cluster.Config())
	if err != nil {
		b.Fatal(err)
	}
	publisher, err := publish.NewPublisher(nc, subject.Layout{}, metrics.New(nil))
	if err != nil {
		b.Fatal(err)
	}
	r := &publishingReplica{nc: nc, members: membership.New(id, kv, nil, zap.NewNop())}
	if r.engine, err = desired.New(desired.Config{NoServices: true}, objects, publisher, r.members, zap.NewNop()); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var g errgroup.Group
	for _, start := range []func(context.Context) error{r.members.Start, objects.Start, r.engine.Start} {
		g.Go(func() error { return start(ctx) })
	}
	r.stop = func() {
		cancel()
		_ = g.Wait() // a killed one ends with the error of its connection
	}
	<-r.engine.Ready()
	return r
}

// BenchmarkTakeover measures the time from the moment a replica becomes silent, as after kill -9, until the next change
// for each node that it owned is in the stream.
func BenchmarkTakeover(b *testing.B) {
	s := &clusterFixture{TB: b, cluster: sharedCluster.Cluster(b), hub: streamstest.Hub(b), ns: "takeover"}
	s.kube = s.cluster.Client(b)
	var nodes []string
	for i := range 100 {
		nodes = append(nodes, fmt.Sprint("takeover-", i))
	}
	s.createNodes(nodes...)
	arrived := make(chan *nats.Msg, 4096) // more than one round's messages
	sub, err := streamstest.Connect(b, s.hub).ChanSubscribe("desired.>", arrived)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	survivor := startReplica(b, s, "survivor")
	defer survivor.stop()
	var took []time.Duration
	for round := 0; b.Loop(); round++ {
		took = append(took, s.killReplica(b, survivor, round, nodes, arrived)...)
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds(), "p50-s")
	b.ReportMetric(took[len(took)-1].Seconds(), "max-s")
}

// killReplica starts a second replica, kills it once it has all its nodes, and returns the time of the next change of each.
func (s *clusterFixture) killReplica(b *testing.B, survivor *publishingReplica, round int, nodes []string, arrived chan *nats.Msg) []time.Duration {
	b.Helper()
	victim := startReplica(b, s, fmt.Sprint("victim-", round))
	kit.Eventually(b, "two members", func() bool { return len(survivor.members.Live()) == 2 && len(victim.members.Live()) == 2 })
	subjects := map[string]bool{}
	for _, node := range nodes {
		if victim.members.Owns(node) {
			subjects[subject.Of(subject.Desired, node, wire.Key{Resource: "pods", Namespace: s.ns, Name: fmt.Sprint(node, "-", round)})] = true
		}
	}
	began := time.Now()
	victim.nc.Close()
	for _, node := range nodes {
		if name := fmt.Sprint(node, "-", round); subjects[subject.Of(subject.Desired, node, wire.Key{Resource: "pods", Namespace: s.ns, Name: name})] {
			s.createPodOn(name, node)
		}
	}
	var took []time.Duration
	for len(subjects) > 0 {
		select {
		case m := <-arrived:
			if subjects[m.Subject] {
				delete(subjects, m.Subject)
				took = append(took, time.Since(began))
			}
		case <-time.After(time.Minute):
			b.Fatalf("%d nodes without their change", len(subjects))
		}
	}
	victim.stop()
	return took
}
