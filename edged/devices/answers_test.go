package devices_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// Answers wait, in order, up to a number and a size; further ones are lost and counted.
func TestAnswers_Bounds(t *testing.T) {
	for name, c := range map[string]struct{ size, fit int }{"number": {1, 1024}, "bytes": {1 << 20, 3}} {
		t.Run(name, func(t *testing.T) {
			var lost atomic.Int64
			sent := make(chan string, c.fit+1)
			enqueue, start := devices.Answers(func(_ context.Context, topic string, _ []byte) error {
				sent <- topic
				return nil
			}, func() { lost.Add(1) }, zaptest.NewLogger(t))
			const more = 5
			var want []string
			for i := range c.fit + more { // nothing is sent yet
				topic := fmt.Sprint(i)
				err := enqueue(broker.Message{Topic: topic, Payload: make([]byte, c.size)})
				if fits := i < c.fit; fits != (err == nil) {
					t.Fatalf("answer %d: %v", i, err)
				}
				if i < c.fit {
					want = append(want, topic)
				}
			}
			if n := lost.Load(); n != more {
				t.Errorf("%d of %d are counted", n, more)
			}
			streamstest.StartPart(t, func(ctx context.Context) error {
				start(ctx)
				return nil
			})
			var got []string
			for range c.fit {
				got = append(got, <-sent)
			}
			if !slices.Equal(got, want) {
				t.Errorf("sent %v, want %v", got, want)
			}
			streamstest.Eventually(t, "there is place again", func() bool { return enqueue(broker.Message{Topic: "x"}) == nil })
		})
	}
}
