package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/subject"
)

// TestDevices_CustomTopics publishes on a custom topic while edgecore and cloudcore are killed at each point on the way, and the link is cut. Each
// message with a PUBACK is in the hub, in order, and as often as the app has sent it.
func TestDevices_CustomTopics(t *testing.T) {
	_, js := connectAdmin(t)
	const topic = "line3/user/count"
	read := func(ctx context.Context) ([]int, error) {
		return readValues(ctx, js, subject.MessagesStream, subject.MessageSubject("edge-1", topic))
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, ended := &sensor{topic: topic}, make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		background := context.WithoutCancel(t.Context())
		if err := shared.Heal(background, "edge-1"); err != nil {
			t.Error(err)
		}
		for _, part := range []string{"cloudcore-1", "cloudcore-2", "edge-1"} {
			if shared.PID(part) == 0 {
				if err := shared.Start(background, part); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for _, count := range []int{1, 5} {
		for _, point := range failpoint.Points()["edgecore with custom topics"] {
			dieAt(t, "edge-1", point, count)
		}
	}
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Kill(t.Context(), "cloudcore-2"); err != nil {
		t.Fatal(err)
	}
	for _, point := range failpoint.Points()["cloudcore with custom topics"] {
		dieAt(t, "cloudcore-1", point, 2)
	}
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		if err := shared.Start(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	cut := s.acked.Load()
	eventually(t, "messages without a link", func(context.Context) string {
		if n := s.acked.Load() - cut; n < 300 {
			return fmt.Sprint(n)
		}
		return ""
	})
	if err := shared.Kill(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	healed := s.acked.Load()
	eventually(t, "messages over the link", func(context.Context) string {
		if s.acked.Load() == healed {
			return "none"
		}
		return ""
	})
	cancel()
	<-ended
	last := int(s.acked.Load())
	t.Logf("%d messages, %d sent again", last+1, s.repeats.Load())
	eventually(t, "the last message is in the hub", func(ctx context.Context) string {
		values, err := read(ctx)
		if err != nil {
			return err.Error()
		}
		if !slices.Contains(values, last) {
			return fmt.Sprintf("%d messages", len(values))
		}
		checkValues(t, values, last, int(s.repeats.Load()))
		return ""
	})
}
