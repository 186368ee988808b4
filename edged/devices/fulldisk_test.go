package devices_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
)

// While the disk has room for control state only, apps get a definite answer: a sample the result 500, a message on a custom topic no PUBACK and a closed
// connection. Nothing of either is stored, however often it is repeated. With room again both are taken.
func TestDevices_LowDiskRefuses(t *testing.T) {
	const (
		update  = "$hw/events/device/default/a/twin/update"
		message = "app/user/x"
	)
	g := newGateway(t)
	g.setModel("INT")
	g.setDevice("a", "edge-1", "1")
	g.start(nil)
	results := make(chan string, 100)
	app := g.app(func(o *paho.ClientOptions) {
		o.SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { results <- string(m.Payload()) })
	})
	token := app.Subscribe(update+"/result", 1, nil)
	if !token.WaitTimeout(30*time.Second) || token.Error() != nil {
		t.Fatalf("not subscribed: %v", token.Error())
	}
	js, err := jetstream.New(g.nc)
	kit.Must(t, err)
	stored := func() (bytes uint64) {
		for _, name := range []string{subject.LeafTelemetryStream, subject.LeafMessagesStream, "TWINS"} {
			stream, err := js.Stream(t.Context(), name)
			kit.Must(t, err)
			bytes += stream.CachedInfo().State.LastSeq
		}
		return bytes
	}
	g.low.Store(true)
	before := stored()
	for range 20 {
		g.publish(app, "a", "21")
		if got := kit.Receive(t, "an answer", results); !strings.Contains(got, `"code":500`) {
			t.Fatalf("the answer is %s", got)
		}
	}
	if token := g.app(func(o *paho.ClientOptions) { o.SetClientID("other") }).Publish(message, 1, false, "x"); !token.WaitTimeout(30*time.Second) || token.Error() == nil {
		t.Error("a message has its PUBACK, or no answer at all")
	}
	if n := stored() - before; n != 0 {
		t.Errorf("%d messages are stored", n)
	}
	g.low.Store(false)
	g.publish(app, "a", "21")
	if got := kit.Receive(t, "an answer", results); strings.Contains(got, `"code"`) {
		t.Errorf("with room again the answer is %s", got)
	}
	kit.Succeeds(t, time.Minute, func() error { // after a refusal all messages are refused for a second
		token := g.app(func(o *paho.ClientOptions) { o.SetClientID("other") }).Publish(message, 1, false, "x")
		token.WaitTimeout(30 * time.Second)
		return token.Error()
	})
}

// The broker's disk fills up while devices report, and nobody restarts edgecore: when there is space again their samples are taken again.
func TestDevices_FullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("frond-test", dir, "tmpfs", 0, "size=24m"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "root") {
			t.Fatal(err)
		}
		t.Skipf("cannot mount a tmpfs, which needs root: %v", err)
	}
	t.Cleanup(func() { kit.Must(t, unix.Unmount(dir, 0)) })
	g := newGateway(t)
	g.dir = filepath.Join(dir, "devices")
	g.setModel("STRING")
	g.setDevice("a", "edge-1", "1")
	stop := g.start(nil)
	defer stop()
	report := func(value string) error {
		client := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + g.address).SetClientID("app").SetProtocolVersion(4).SetAutoReconnect(false).SetConnectTimeout(5 * time.Second))
		token := client.Connect()
		if !token.WaitTimeout(30*time.Second) || token.Error() != nil {
			return errors.Join(errors.New("not connected"), token.Error())
		}
		defer client.Disconnect(0)
		token = client.Publish("$hw/events/device/default/a/twin/update", 1, false, `{"event_id":"e","twin":{"temp":{"actual":{"value":"`+value+`"}}}}`)
		if !token.WaitTimeout(30 * time.Second) {
			return errors.New("no answer")
		}
		return token.Error()
	}
	kit.Succeeds(t, time.Minute, func() error { return report("before") })
	other := filepath.Join(dir, "somebody-elses")
	fill(t, other)
	large := strings.Repeat("x", 4000)
	kit.Within(t, 2*time.Minute, "the broker refuses samples", func() bool { return report(large) != nil })
	kit.Must(t, os.Remove(other))
	kit.Succeeds(t, 2*time.Minute, func() error { return report("after") })
	g.reported("a", `"after"`)
}

// fill fills the disk of a path.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	kit.Must(t, err)
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	kit.Must(t, f.Close())
}
