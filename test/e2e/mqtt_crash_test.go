package e2e_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/frond-edge/frond/internal/failpoint"
)

// sensor reports the values 0, 1, 2 …: of the boiler's temperature, or on another topic. It sends a value again until it has its PUBACK, as a good
// app does.
type sensor struct {
	topic   string       // "" is that of the boiler
	acked   atomic.Int64 // the last value with a PUBACK
	repeats atomic.Int64 // values that were sent again
}

// run reports until ctx ends.
func (s *sensor) run(ctx context.Context) {
	for value := int64(0); ctx.Err() == nil; {
		app := connectSensor(ctx, "sensor"+s.topic)
		if app == nil {
			continue
		}
		for ctx.Err() == nil {
			topic, text := s.topic, strconv.FormatInt(value, 10)
			if topic == "" {
				topic = "$hw/events/device/default/boiler/twin/update"
				text = fmt.Sprintf(`{"event_id":"e","timestamp":%d,"twin":{"temperature":{"actual":{"value":"%d"}}}}`, 1_000_000+value, value)
			}
			token := app.Publish(topic, 1, false, text)
			taken := false
			select {
			case <-token.Done():
				taken = token.Error() == nil
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			if !taken {
				s.repeats.Add(1)
				break
			}
			s.acked.Store(value)
			value++
			select {
			case <-ctx.Done():
			case <-time.After(10 * time.Millisecond): // below the rate of a device
			}
		}
		app.Disconnect(0)
	}
}

// connectSensor connects to the broker, or returns nil after a moment.
func connectSensor(ctx context.Context, id string) paho.Client {
	app := paho.NewClient(gatewayOptions(ctx, "edge-1", id))
	if token := app.Connect(); token.WaitTimeout(5*time.Second) && token.Error() == nil {
		return app
	}
	app.Disconnect(0)
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
	return nil
}

// TestDevices_CrashPoints kills edgecore and cloudcore at each point on the way of samples, while a sensor reports. Each value with a PUBACK is in the
// hub, in order, and as often as the sensor has sent it.
func TestDevices_CrashPoints(t *testing.T) {
	_, js := connectAdmin(t)
	applyManifest(t, boilerManifest)
	app, received := dialGateway(t, "edge-1")
	awaitDeviceKnown(t, app, received)
	before, err := readSamples(t.Context(), js) // of other tests
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s, ended := &sensor{}, make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		for _, part := range []string{"cloudcore-1", "cloudcore-2", "edge-1"} {
			if shared.PID(part) == 0 {
				if err := shared.Start(context.WithoutCancel(t.Context()), part); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for _, count := range []int{1, 5} {
		for _, point := range failpoint.Points()["edgecore with devices"] {
			dieAt(t, "edge-1", point, count)
		}
	}
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Kill(t.Context(), "cloudcore-2"); err != nil {
		t.Fatal(err)
	}
	for _, count := range []int{1, 4} {
		for _, point := range failpoint.Points()["cloudcore with devices"] {
			dieAt(t, "cloudcore-1", point, count)
		}
	}
	for _, part := range []string{"cloudcore-1", "cloudcore-2"} {
		if err := shared.Start(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-ended
	last := int(s.acked.Load())
	t.Logf("%d values, %d sent again", last+1, s.repeats.Load())
	eventually(t, "the last value is in the hub", func(ctx context.Context) string {
		values, err := readSamples(ctx, js)
		if err != nil {
			return err.Error()
		}
		if values = values[min(len(before), len(values)):]; !slices.Contains(values, last) {
			return fmt.Sprintf("%d samples", len(values))
		}
		checkValues(t, values, last, int(s.repeats.Load()))
		return ""
	})
}

// checkValues checks that the values are 0 to last and at most one more, in order, and that no more are doubled than were sent again.
func checkValues(t *testing.T, values []int, last, repeats int) {
	t.Helper()
	next, doubled := 0, 0
	for i, value := range values {
		switch {
		case value == next:
			next++
		case value == next-1 && i > 0:
			doubled++
		default:
			t.Fatalf("sample %d has the value %d, want %d", i, value, next)
		}
	}
	if next != last+1 && next != last+2 || doubled > repeats {
		t.Errorf("the hub has %d values and %d twice; the sensor has a PUBACK of %d, and has sent %d again", next, doubled, last+1, repeats)
	}
}

// dieAt kills a part, starts it with a crash point, and waits until it has died there.
func dieAt(t *testing.T, part, point string, count int) {
	t.Helper()
	if shared.PID(part) != 0 {
		if err := shared.Kill(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	log, err := shared.Log(part)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // read only
	if _, err := log.Seek(0, io.SeekEnd); err != nil {
		t.Fatal(err)
	}
	if err := shared.Launch(t.Context(), part, failpoint.Env+"="+point+":"+strconv.Itoa(count)); err != nil {
		t.Fatal(err)
	}
	eventually(t, part+" dies at "+point, func(context.Context) string {
		if shared.PID(part) != 0 {
			return "it lives"
		}
		return ""
	})
	said, err := io.ReadAll(log)
	if err != nil || !strings.Contains(string(said), failpoint.ReachedPrefix+point) {
		t.Errorf("%s died, but not at %s: %v", part, point, err)
	}
}
