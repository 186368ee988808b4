package publish_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestPublisher_StaleWriterIsRefusedAndRepeatIsNot(t *testing.T) {
	publisher, err := publish.NewPublisher(streamstest.Connect(t, streamstest.Hub(t)), subject.Layout{}, metrics.New(nil))
	if err != nil {
		t.Fatal(err)
	}
	first, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("a", "1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	// Some servers recognise the message id first, others the expected sequence; neither stores it twice.
	if again, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("a", "1"), 0); again != first && !errors.Is(err, wire.ErrConflict) {
		t.Errorf("the same publish again: %d, %v, want %d or %v", again, err, first, wire.ErrConflict)
	}
	if _, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("a", "2"), 0); !errors.Is(err, wire.ErrConflict) {
		t.Errorf("a writer that missed a message: %v, want %v", err, wire.ErrConflict)
	}
	gone, err := publisher.Publish(t.Context(), streamstest.TombstoneMessage("a"), first)
	if err != nil {
		t.Fatal(err)
	}
	back, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("a", "1"), gone)
	if err != nil || back <= gone {
		t.Errorf("the same version after a tombstone: %d, %v, want a new sequence", back, err)
	}
	if err := publisher.Purge(t.Context(), "edge.1", streamstest.ConfigMapKey("a"), gone); err != nil {
		t.Fatal(err)
	}
	held, err := publisher.Held(t.Context(), "edge.1")
	if err != nil || held[streamstest.ConfigMapKey("a")].Sequence != back {
		t.Errorf("after purging up to %d the stream holds %+v, %v", gone, held, err)
	}
	if err := publisher.Purge(t.Context(), "edge.1", streamstest.ConfigMapKey("a"), back); err != nil {
		t.Fatal(err)
	}
	if held, err = publisher.Held(t.Context(), "edge.1"); err != nil || len(held) != 0 {
		t.Errorf("after purging all the stream holds %+v, %v", held, err)
	}
}

// A node with more objects than the server answers in one direct get (1,024) must be served all the same.
func TestDelivery_MoreObjectsThanOneDirectGet(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	const objects = 1500
	var g errgroup.Group
	g.SetLimit(64)
	for i := range objects {
		g.Go(func() error {
			_, err := cloud.Publisher.Publish(t.Context(), streamstest.DesiredMessage(fmt.Sprint("o", i), "1"), 0)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	held, err := cloud.Publisher.Held(t.Context(), "edge.1")
	if err != nil || len(held) != objects {
		t.Fatalf("held %d, %v, want %d", len(held), err, objects)
	}
	store, link := streamstest.NewMemoryStore(), streamstest.NewSwitchableLink()
	streamstest.StartNode(t, hub, store, link)
	kit.Eventually(t, "every object", func() bool { return store.ObjectCount() == objects })
	link.SetUp(false)
	cloud.PublishNext(t, streamstest.DesiredMessage("o7", "2"))
	cloud.PublishNext(t, streamstest.TombstoneMessage("o8"))
	link.SetUp(true)
	kit.Eventually(t, "the changes", func() bool { return store.ObjectOf("o7") == `{"v":"2"}` && store.ObjectCount() == objects-1 })
}

func TestCallServer_AnswersOnlyTheAskersInbox(t *testing.T) {
	hub := streamstest.Hub(t)
	streamstest.StartCloud(t, hub, false)
	nc := streamstest.Connect(t, hub)
	victim, err := nc.SubscribeSync("desired.edge_2.>")
	if err != nil {
		t.Fatal(err)
	}
	node := streamstest.Node(t, hub, "edge.1")
	var reply wire.AttachReply
	// Before the cloud subscribes, the server itself answers "no responders", on any subject.
	kit.Eventually(t, "the cloud answers", func() bool {
		return call.Call(t.Context(), node, "edge.1", subject.VerbAttach, wire.AttachRequest{}, &reply) == nil
	})
	if err := nc.PublishRequest(subject.CallSubject("edge.1", subject.VerbAttach), "desired.edge_2.core.pods.a.b", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if err := call.Call(t.Context(), node, "edge.1", subject.VerbAttach, wire.AttachRequest{}, &reply); err != nil || reply.Error != "" {
		t.Fatalf("a proper call: %+v, %v", reply, err)
	}
	if n, _, err := victim.Pending(); err != nil || n != 0 {
		t.Errorf("a foreign subject got %d answers, %v", n, err)
	}
	for _, request := range []string{"null", "[]", "{", `{"sequence":"x"}`} {
		msg, err := node.Request(subject.CallSubject("edge.1", subject.VerbAttach), []byte(request), 5*time.Second)
		if err != nil || !bytes.Contains(msg.Data, []byte(`"error":`)) {
			t.Errorf("garbage %s: %v, want an error in the answer", request, err)
		}
	}
}
