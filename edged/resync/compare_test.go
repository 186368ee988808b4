package resync_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/resync"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// upLink is a link that is up and stays so.
type upLink struct{}

func (upLink) State() (up bool, changed <-chan struct{}) { return true, nil }

// namesSink passes on the names of what is reported.
type namesSink chan string

func (s namesSink) Report(_ context.Context, m wire.Message) error {
	s <- m.Key.Name
	return nil
}

// startReporter starts the reporter of a gateway with its Node and the pods a, b, c, and one of another node.
func startReporter(t *testing.T, interval time.Duration, compare resync.CompareFunc) namesSink {
	t.Helper()
	return startLinkedReporter(t, upLink{}, interval, compare)
}

func startLinkedReporter(t *testing.T, link resync.Link, interval time.Duration, compare resync.CompareFunc) namesSink {
	t.Helper()
	log := zaptest.NewLogger(t)
	l := leaftest.StartLeaf(t, leaf.Config{})
	js, err := jetstream.New(l.Client())
	kit.Must(t, err)
	octx, cancelOpen := context.WithTimeout(t.Context(), time.Minute) // without a limit the library's is 5 s
	defer cancelOpen()
	st, err := store.Open(octx, js, store.Config{}, log)
	kit.Must(t, err)
	messages := []wire.Message{{
		Key: wire.Key{Resource: "nodes", Name: "edge-1"}, Op: wire.Apply, UID: "n", Version: "1", Sequence: 1,
		Object: []byte(`{"metadata":{"name":"edge-1","uid":"n","resourceVersion":"1"}}`),
	}}
	for i, name := range []string{"a", "b", "c", "foreign"} {
		node := "edge-1"
		if name == "foreign" {
			node = "edge-2"
		}
		messages = append(messages, wire.Message{
			Key: wire.Key{Resource: "pods", Namespace: "default", Name: name}, Op: wire.Apply, UID: "u-" + name, Version: "1", Sequence: uint64(i + 2),
			Object: fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":"default","uid":"u-%s","resourceVersion":"1"},"spec":{"nodeName":%q},"status":{"phase":"Running"}}`, name, name, node),
		})
	}
	kit.Must(t, st.Apply(t.Context(), messages, uint64(len(messages))))
	sink := make(namesSink, 1000)
	lock := func(context.Context, wire.Key) (func(), error) { return func() {}, nil }
	reporter := resync.New("edge-1", st, link, sink, lock, compare, log)
	reporter.SetTimes(interval, time.Millisecond)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return reporter.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		kit.Must(t, g.Wait())
	})
	return sink
}

// take returns the next n reported names, sorted, and fails if another follows within a moment and none may.
func (s namesSink) take(t *testing.T, n int, last bool) []string {
	t.Helper()
	var got []string
	for len(got) < n {
		select {
		case name := <-s:
			got = append(got, name)
		case <-time.After(30 * time.Second):
			t.Fatalf("reported only %v", got)
		}
	}
	if last {
		select {
		case name := <-s:
			t.Errorf("also reported %s", name)
		case <-time.After(100 * time.Millisecond):
		}
	}
	slices.Sort(got)
	return got
}

// same answers that the named pods are the same.
func same(request wire.SameRequest, names ...string) (reply wire.SameReply) {
	for i, pod := range request.Pods {
		if slices.Contains(names, pod.Name) {
			reply.Same = append(reply.Same, i)
		}
	}
	return reply
}

func TestReporter_LeavesOutWhatTheCloudHas(t *testing.T) {
	asked := make(chan wire.SameRequest, 1)
	sink := startReporter(t, time.Hour, func(_ context.Context, request wire.SameRequest) (wire.SameReply, error) {
		asked <- request
		return same(request, "a", "c"), nil
	})
	if got, want := sink.take(t, 2, true), []string{"b", "edge-1"}; !slices.Equal(got, want) {
		t.Errorf("reported %v, want %v", got, want)
	}
	if request := <-asked; len(request.Pods) != 3 || request.Pods[0].UID == "" || request.Pods[0].Digest == "" {
		t.Errorf("asked for %+v; want the node's own pods", request.Pods)
	}
}

// After an outage of the hub a link may be up before those of the cloudcores: to report everything then would be the flood again.
func TestReporter_WaitsForACloudcore(t *testing.T) {
	tries := 0
	sink := startReporter(t, time.Hour, func(_ context.Context, request wire.SameRequest) (wire.SameReply, error) {
		if tries++; tries < 3 {
			return wire.SameReply{}, fmt.Errorf("no responders: %w", wire.ErrOffline)
		}
		return same(request, "a", "b", "c"), nil
	})
	if got, want := sink.take(t, 1, true), []string{"edge-1"}; !slices.Equal(got, want) {
		t.Errorf("reported %v, want %v", got, want)
	}
}

// A link that is lost while no cloudcore answers brings no flood: the next link begins again.
func TestReporter_BeginsAgainWithTheNextLink(t *testing.T) {
	link, asked := streamstest.NewSwitchableLink(), make(chan struct{})
	sink := startLinkedReporter(t, link, time.Hour, func(ctx context.Context, request wire.SameRequest) (wire.SameReply, error) {
		select {
		case asked <- struct{}{}:
			return wire.SameReply{}, fmt.Errorf("no responders: %w", wire.ErrOffline)
		case <-ctx.Done():
			return wire.SameReply{}, ctx.Err()
		}
	})
	<-asked
	link.SetUp(false)
	link.SetUp(true)
	for range 3 { // of the new link
		<-asked
	}
	for len(sink) > 0 {
		if name := <-sink; name != "edge-1" {
			t.Errorf("reported %s", name)
		}
	}
}

// Whatever the cloud does not confirm is reported.
func TestReporter_ReportsAllWithoutAnAnswer(t *testing.T) {
	for name, answer := range map[string]func() (wire.SameReply, error){
		"old cloudcore": func() (wire.SameReply, error) { return wire.SameReply{}, errors.New("verb is unknown") },
		"no cloudcore":  func() (wire.SameReply, error) { return wire.SameReply{}, wire.ErrOffline },
		"empty":         func() (wire.SameReply, error) { return wire.SameReply{}, nil },
		"nonsense":      func() (wire.SameReply, error) { return wire.SameReply{Same: []int{-1, 3, 1 << 40}}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			sink := startReporter(t, time.Hour, func(context.Context, wire.SameRequest) (wire.SameReply, error) { return answer() })
			if got, want := sink.take(t, 4, true), []string{"a", "b", "c", "edge-1"}; !slices.Equal(got, want) {
				t.Errorf("reported %v, want %v", got, want)
			}
		})
	}
}

// The hourly report repairs what a comparison got wrong, so it makes none.
func TestReporter_ComparesNotHourly(t *testing.T) {
	sink := startReporter(t, 200*time.Millisecond, func(_ context.Context, request wire.SameRequest) (wire.SameReply, error) {
		return same(request, "a", "b", "c"), nil
	})
	if got, want := sink.take(t, 5, false), []string{"a", "b", "c", "edge-1", "edge-1"}; !slices.Equal(got, want) {
		t.Errorf("reported %v, want %v", got, want)
	}
}
