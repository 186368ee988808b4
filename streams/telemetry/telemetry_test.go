package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/telemetry"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/relaytest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

const node = "edge-1"

// limits are large enough for every test that does not set its own.
var limits = telemetry.StoreConfig{MaxBytes: 64 << 20, MaxAge: time.Hour}

func sample(device string, i int) telemetry.Sample {
	return telemetry.Sample{
		Namespace: "plant", Device: device, Property: "temperature", Value: strconv.Itoa(i),
		DeviceTime: time.UnixMilli(1_000_000 + int64(i)), GatewayTime: time.UnixMilli(2_000_000 + int64(i)), ClockSynced: true,
	}
}

// samplesOf returns samples with the values from to until-1, of two devices in turn.
func samplesOf(from, until int) (all []telemetry.Sample) {
	for i := from; i < until; i++ {
		all = append(all, sample([]string{"boiler", "pump"}[i%2], i))
	}
	return all
}

// plant is a hub with a cloudcore, and a gateway behind a relay.
type plant struct {
	*testing.T
	hub   *leaftest.Hub
	js    jetstream.JetStream
	relay *relaytest.Relay
	leaf  *leaftest.Leaf
	dir   string
	// losesAnswers makes the cloudcore store samples and not answer.
	losesAnswers atomic.Bool
	reg          *prometheus.Registry
}

func newPlant(t *testing.T) *plant {
	t.Helper()
	p := &plant{T: t, hub: leaftest.NewHub(t), dir: t.TempDir(), reg: prometheus.NewRegistry()}
	nc := p.hub.Conn()
	var err error
	if p.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), p.js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	p.relay = relaytest.Start(t, p.hub.Addr(), relaytest.Config{})
	return p
}

// assigned gives the node all devices of the namespace plant but one.
func assigned(_ context.Context, _, namespace, device string) (bool, error) {
	return namespace == "plant" && device != "foreign", nil
}

// startCloud starts a cloudcore.
func (p *plant) startCloud() (stop func()) {
	p.Helper()
	nc := p.hub.Conn()
	log, common := zaptest.NewLogger(p), metrics.New(nil)
	receiver, err := telemetry.NewReceiver(nc, assigned, telemetry.NewReceiverMetrics(telemetry.Samples(), nil), common, log)
	if err != nil {
		p.Fatal(err)
	}
	messages, err := telemetry.NewMessageReceiver(nc, telemetry.NewReceiverMetrics(telemetry.Messages(), nil), common, log)
	if err != nil {
		p.Fatal(err)
	}
	lossy := func(handle call.Handler) call.Handler {
		return func(ctx context.Context, node string, request []byte) (any, error) {
			reply, err := handle(ctx, node, request)
			if p.losesAnswers.Load() {
				return nil, errors.New("the answer is lost")
			}
			return reply, err
		}
	}
	calls, err := call.NewServer(nc, map[string]call.Handler{subject.VerbTelemetry: lossy(receiver.Handle), subject.VerbMessages: lossy(messages.Handle)}, common, log)
	if err != nil {
		p.Fatal(err)
	}
	return streamstest.StartPart(p.T, calls.Start)
}

// startGateway starts the gateway with its store and pump.
func (p *plant) startGateway(cfg telemetry.StoreConfig) (*telemetry.Store, func()) {
	p.Helper()
	p.leaf = leaftest.StartLeaf(p.T, leaf.Config{Dir: p.dir, Hub: []string{leaftest.URL(p.relay.Addr())}})
	own := p.leaf.Client()
	log := zaptest.NewLogger(p)
	store, err := telemetry.OpenStore(p.Context(), telemetry.Samples(), cfg, own, telemetry.NewStoreMetrics(telemetry.Samples(), nil), log)
	if err != nil {
		p.Fatal(err)
	}
	p.reg = prometheus.NewRegistry()
	pump := telemetry.NewPump(telemetry.PumpConfig{Node: node}, store, own, leafLink{p.leaf}, telemetry.NewPumpMetrics(telemetry.Samples(), p.reg), log)
	stopStore, stopPump := streamstest.StartPart(p.T, store.Start), streamstest.StartPart(p.T, pump.Start)
	return store, func() {
		stopPump()
		stopStore()
		p.leaf.Stop()
	}
}

// leafLink is a leaf's link as a pump wants it.
type leafLink struct{ *leaftest.Leaf }

func (l leafLink) State() (bool, <-chan struct{}) {
	state, changed := l.WatchLink()
	return state.Up, changed
}

// stored returns the messages of TELEMETRY-0.
func (p *plant) stored() []*jetstream.RawStreamMsg {
	p.Helper()
	return p.storedIn(subject.TelemetryStream)
}

func (p *plant) storedIn(name string) (all []*jetstream.RawStreamMsg) {
	p.Helper()
	stream, err := p.js.Stream(p.Context(), name)
	if err != nil {
		p.Fatal(err)
	}
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(p.Context(), seq)
		if err != nil {
			p.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

func (p *plant) count() int {
	p.Helper()
	return p.countOf(subject.TelemetryStream)
}

func (p *plant) countOf(name string) int {
	p.Helper()
	stream, err := p.js.Stream(p.Context(), name)
	if err != nil {
		p.Fatal(err)
	}
	return int(stream.CachedInfo().State.Msgs)
}

// expect waits until the hub has n samples, and fails unless their values are 0 to n-1 in order, each once.
func (p *plant) expect(n int) {
	p.Helper()
	streamstest.WaitWithin(p.T, time.Minute, fmt.Sprintf("%d samples in the hub", n), func() bool { return p.count() >= n })
	for i, m := range p.stored() {
		if string(m.Data) != strconv.Itoa(i) {
			p.Fatalf("message %d has the value %s (number %s)", i, m.Data, m.Header.Get(telemetry.HeaderNumber))
		}
	}
}

// Each sample is in the hub once, in order, under its own subject, with its times and numbers.
func TestTelemetry_ReachesTheHub(t *testing.T) {
	p := newPlant(t)
	p.startCloud()
	store, _ := p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(0, 3)); err != nil {
		t.Fatal(err)
	}
	if err := store.Append(t.Context(), telemetry.Flow, samplesOf(3, 5)); err != nil {
		t.Fatal(err)
	}
	p.expect(5)
	got := p.stored()[2]
	want := map[string]string{
		telemetry.HeaderNumber: "3", telemetry.HeaderPrevious: "1", telemetry.HeaderClock: "synced",
		telemetry.HeaderDeviceTime: "1970-01-01T00:16:40.002Z", telemetry.HeaderGatewayTime: "1970-01-01T00:33:20.002Z",
	}
	for name, value := range want {
		if got.Header.Get(name) != value {
			t.Errorf("header %s is %q, want %q", name, got.Header.Get(name), value)
		}
	}
	if got.Subject != "telemetry.edge-1.plant.boiler.temperature" {
		t.Errorf("subject %s", got.Subject)
	}
	if first := p.stored()[0]; first.Header.Get(telemetry.HeaderPrevious) != "" || first.Header.Get(telemetry.HeaderRun) == "" {
		t.Errorf("first sample: %v", first.Header)
	}
}

// What is sampled without a link, over a restart of the gateway, arrives when the link is back, and numbers go on.
func TestTelemetry_SurvivesCutAndRestart(t *testing.T) {
	p := newPlant(t)
	p.startCloud()
	store, stop := p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(0, 10)); err != nil {
		t.Fatal(err)
	}
	p.expect(10)
	p.relay.Cut()
	for i := 10; i < 3000; i += 100 {
		if err := store.Append(t.Context(), telemetry.Exact, samplesOf(i, min(i+100, 3000))); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	p.relay.Heal()
	store, _ = p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(3000, 3010)); err != nil {
		t.Fatal(err)
	}
	p.expect(3010)
	for i, m := range p.stored() {
		if m.Header.Get(telemetry.HeaderNumber) != strconv.Itoa(i+1) {
			t.Fatalf("sample %d has the number %s", i, m.Header.Get(telemetry.HeaderNumber))
		}
	}
	if run := p.stored()[0].Header.Get(telemetry.HeaderRun); run != p.stored()[3009].Header.Get(telemetry.HeaderRun) {
		t.Error("the run has changed")
	}
}

// Numbers go on over a restart when the hub has everything: the last record stays on the disk.
func TestTelemetry_NumbersGoOn(t *testing.T) {
	p := newPlant(t)
	p.startCloud()
	store, stop := p.startGateway(limits)
	for i := range 5 {
		if err := store.Append(t.Context(), telemetry.Exact, samplesOf(i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	p.expect(5)
	leafJS, err := jetstream.New(p.leaf.Client())
	if err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "what was sent is removed", func() bool {
		stream, err := leafJS.Stream(t.Context(), subject.LeafTelemetryStream)
		return err == nil && stream.CachedInfo().State.Msgs <= 2 // the last record, and that it is sent
	})
	stop()
	store, _ = p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(5, 6)); err != nil {
		t.Fatal(err)
	}
	p.expect(6)
	first, last := p.stored()[0].Header, p.stored()[5].Header
	if last.Get(telemetry.HeaderNumber) != "6" || last.Get(telemetry.HeaderRun) != first.Get(telemetry.HeaderRun) {
		t.Errorf("the first sample after the restart has %v, the first of all %v", last, first)
	}
}

// The source of samples is known after a restart, also when samples without a source came last.
func TestStore_RemembersTheSource(t *testing.T) {
	p := newPlant(t)
	store, stop := p.startGateway(limits)
	if got := store.Source(); got != (telemetry.Source{}) {
		t.Errorf("source of an empty store: %+v", got)
	}
	want := telemetry.Source{Stream: "mqtt-1", Sequence: 17}
	if err := store.AppendFrom(t.Context(), want, samplesOf(0, 1200)); err != nil {
		t.Fatal(err)
	}
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(1200, 1201)); err != nil {
		t.Fatal(err)
	}
	stop()
	p.startCloud()
	store, _ = p.startGateway(limits)
	if got := store.Source(); got != want {
		t.Errorf("source after a restart: %+v, want %+v", got, want)
	}
	p.expect(1201)
}

// A request whose answer was lost is made again, to another cloudcore, and stores nothing twice.
func TestTelemetry_LostAnswersStoreNothingTwice(t *testing.T) {
	p := newPlant(t)
	p.losesAnswers.Store(true)
	stopCloud := p.startCloud()
	store, _ := p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(0, 700)); err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "the first samples in the hub", func() bool { return p.count() > 0 })
	p.startCloud()
	stopCloud()
	p.losesAnswers.Store(false)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(700, 800)); err != nil {
		t.Fatal(err)
	}
	p.expect(800)
}

// Several cloudcores answer the requests of one node by turns, and what one has stored another one does not overwrite or repeat.
func TestTelemetry_ManyCloudcores(t *testing.T) {
	p := newPlant(t)
	for range 3 {
		p.startCloud()
	}
	store, _ := p.startGateway(limits)
	for i := range 300 {
		if err := store.Append(t.Context(), telemetry.Exact, samplesOf(i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	p.expect(300)
}

// When more waits than the disk may hold, the oldest goes, it is counted, and the gap shows in the numbers.
func TestTelemetry_DropsTheOldest(t *testing.T) {
	p := newPlant(t)
	p.startCloud()
	store, _ := p.startGateway(telemetry.StoreConfig{MaxBytes: 64 << 10, MaxAge: time.Hour})
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(0, 1)); err != nil {
		t.Fatal(err)
	}
	p.expect(1)
	p.relay.Cut()
	for i := 1; i < 1000; i++ {
		if err := store.Append(t.Context(), telemetry.Exact, samplesOf(i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	p.relay.Heal()
	streamstest.Eventually(t, "the last sample", func() bool {
		all := p.stored()
		return string(all[len(all)-1].Data) == "999"
	})
	all := p.stored()
	dropped := 1000 - len(all)
	if dropped < 100 {
		t.Fatalf("%d of 1,000 samples dropped, the test drops too few", dropped)
	}
	for i, m := range all[1:] {
		if want := strconv.Itoa(dropped + 1 + i); string(m.Data) != want {
			t.Fatalf("message %d after the gap has the value %s, want %s", i, m.Data, want)
		}
	}
	streamstest.Eventually(t, "the dropped are counted", func() bool { return p.countsDropped(dropped, 1) })
}

// countsDropped reports whether the gateway has counted so many dropped samples, or up to unanswered more: those that the hub has, and whose answer the cut
// took, are dropped as far as the gateway knows.
func (p *plant) countsDropped(dropped, unanswered int) bool {
	p.Helper()
	counted := int(streamstest.SumCounters(p.T, p.reg, "frond_telemetry_dropped_total", "full"))
	return dropped <= counted && counted <= dropped+unanswered
}

// What is dropped before anything was sent is counted, and so is what is dropped after a restart, when the note of what is sent was among the oldest.
func TestTelemetry_CountsWhatIsDroppedUnsent(t *testing.T) {
	small := telemetry.StoreConfig{MaxBytes: 64 << 10, MaxAge: time.Hour}
	for name, first := range map[string]int{"never linked": 0, "restarted": 10} {
		t.Run(name, func(t *testing.T) {
			p := newPlant(t)
			p.startCloud()
			if first == 0 {
				p.relay.Cut()
			}
			store, stop := p.startGateway(small)
			for i := range first {
				if err := store.Append(t.Context(), telemetry.Exact, samplesOf(i, i+1)); err != nil {
					t.Fatal(err)
				}
			}
			if first > 0 {
				p.expect(first)
				p.relay.Cut()
			}
			for i := first; i < 1000; i++ {
				if err := store.Append(t.Context(), telemetry.Exact, samplesOf(i, i+1)); err != nil {
					t.Fatal(err)
				}
			}
			if first > 0 {
				js, err := jetstream.New(p.leaf.Client())
				if err != nil {
					t.Fatal(err)
				}
				stream, err := js.Stream(t.Context(), subject.LeafTelemetryStream)
				if err != nil {
					t.Fatal(err)
				}
				streamstest.WaitWithin(t, time.Minute, "it is noted again what is sent", func() bool {
					_, err := stream.GetLastMsgForSubject(t.Context(), subject.LeafTelemetrySubject+".sent")
					return err == nil
				})
				stop()
				p.relay.Heal()
				p.startGateway(small)
			}
			p.relay.Heal()
			streamstest.WaitWithin(t, time.Minute, "the last sample", func() bool {
				if p.count() == 0 {
					return false
				}
				all := p.stored()
				return string(all[len(all)-1].Data) == "999"
			})
			dropped := 1000 - len(p.stored())
			if dropped < 100 {
				t.Fatalf("%d of 1,000 samples dropped, the test drops too few", dropped)
			}
			streamstest.Eventually(t, "the dropped are counted", func() bool { return p.countsDropped(dropped, first) })
		})
	}
}

// Samples of a device that is not the node's are dead-lettered, and the others arrive.
func TestTelemetry_RefusesForeignDevices(t *testing.T) {
	p := newPlant(t)
	p.startCloud()
	store, _ := p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, []telemetry.Sample{sample("boiler", 0), sample("foreign", 7), sample("pump", 1)}); err != nil {
		t.Fatal(err)
	}
	p.expect(2)
	dead, err := p.js.Stream(t.Context(), subject.DeadLetterStream)
	if err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "a dead letter", func() bool {
		info, err := dead.Info(t.Context())
		return err == nil && info.State.Msgs == 1
	})
	streamstest.Eventually(t, "the gateway counts it", func() bool {
		return streamstest.SumCounters(t, p.reg, "frond_telemetry_refused_total", "") == 1
	})
}

// A gateway that has nothing new to send, and starts again after the hub has dropped its samples by age, sends its last record no second time.
func TestTelemetry_QuietGatewayRepeatsNothing(t *testing.T) {
	p := newPlant(t)
	p.startCloud()
	store, stop := p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(0, 3)); err != nil {
		t.Fatal(err)
	}
	p.expect(3)
	leafJS, err := jetstream.New(p.leaf.Client())
	if err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "it is written down that they are sent", func() bool {
		stream, err := leafJS.Stream(t.Context(), subject.LeafTelemetryStream)
		if err != nil {
			return false
		}
		_, err = stream.GetLastMsgForSubject(t.Context(), subject.LeafTelemetrySubject+".sent")
		return err == nil
	})
	stop()
	hub, err := p.js.Stream(t.Context(), subject.TelemetryStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := hub.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.startCloud() // another one, which has not seen the node
	store, _ = p.startGateway(limits)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(3, 4)); err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "the next sample", func() bool { return p.count() > 0 })
	if all := p.stored(); string(all[0].Data) != "3" || all[0].Header.Get(telemetry.HeaderNumber) != "4" || len(all) != 1 {
		t.Errorf("the hub has %d samples, the first is %s with the number %s", len(all), all[0].Data, all[0].Header.Get(telemetry.HeaderNumber))
	}
}

// What Append takes the cloud takes: samples of the largest size, and such that are larger in JSON.
func TestTelemetry_LargeSamplesArrive(t *testing.T) {
	p := newPlant(t)
	p.startCloud()
	store, _ := p.startGateway(limits)
	const count = 600
	all := samplesOf(0, count)
	for i := range all {
		all[i].Value = strings.Repeat([]string{"a", "\"", "\x01"}[i%3], telemetry.MaxValue)
	}
	if err := store.Append(t.Context(), telemetry.Exact, all); err != nil {
		t.Fatal(err)
	}
	streamstest.WaitWithin(t, time.Minute, "all samples", func() bool { return p.count() == count })
	if n := streamstest.SumCounters(t, p.reg, "frond_telemetry_dropped_total", ""); n != 0 {
		t.Errorf("%v samples dropped", n)
	}
}

// A record whose answer is lost, because a disk stands still, is stored once.
func TestStore_LostAnswersStoreOnce(t *testing.T) {
	p := newPlant(t)
	_, stop := p.startGateway(limits)
	stop()
	own := leaftest.StartLeaf(t, leaf.Config{Dir: p.dir}).Client()
	store, err := telemetry.OpenStore(t.Context(), telemetry.Samples(), limits, own, telemetry.NewStoreMetrics(telemetry.Samples(), nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	telemetry.LoseAnswers(store, 3)
	streamstest.StartPart(t, store.Start)
	for i := range 5 {
		if err := store.Append(t.Context(), telemetry.Exact, samplesOf(i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	js, err := jetstream.New(own)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.LeafTelemetryStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 5 {
		t.Errorf("%d records of 5 samples", n)
	}
}

// A record that was given up, because the disk stood still for too long, may be stored all the same, with the numbers that the next record has. That
// one was not stored then, and must not be taken for it.
func TestStore_LateRecordDisplacesNone(t *testing.T) {
	own := leaftest.StartLeaf(t, leaf.Config{}).Client()
	store, err := telemetry.OpenStore(t.Context(), telemetry.Samples(), limits, own, telemetry.NewStoreMetrics(telemetry.Samples(), nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, store.Start)
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(0, 1)); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(own)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.LeafTelemetryStream)
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	late := &nats.Msg{Subject: first.Subject, Header: first.Header, Data: first.Data}
	late.Header.Set("Frond-First", "2")
	late.Header.Set("Frond-Attempt", "late")
	late.Header.Del(jetstream.ExpectedLastSubjSeqHeader)
	if _, err := js.PublishMsg(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	if err := store.Append(t.Context(), telemetry.Exact, samplesOf(1, 2)); err != nil {
		t.Fatal(err)
	}
	last, err := stream.GetMsg(t.Context(), 3)
	if err != nil {
		t.Fatalf("the sample is not stored: %v", err)
	}
	if got := last.Header.Get("Frond-First"); got != "3" {
		t.Errorf("it has the number %s, want 3", got)
	}
}

// What waits is bounded in bytes: further appends wait until there is place.
func TestStore_BoundsWhatWaits(t *testing.T) {
	own := leaftest.StartLeaf(t, leaf.Config{}).Client()
	store, err := telemetry.OpenStore(t.Context(), telemetry.Messages(), limits, own, telemetry.NewStoreMetrics(telemetry.Messages(), nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	n := 0
	for ; ctx.Err() == nil && n < 100; n++ { // the store is not started: nothing is stored
		if _, err := store.EnqueueMessage(ctx, message("a/user/b", make([]byte, telemetry.MaxPayload))); err != nil {
			break
		}
	}
	if n == 0 || n >= 16 {
		t.Errorf("%d messages of 256 KiB wait", n)
	}
	streamstest.StartPart(t, store.Start)
	if _, err := store.EnqueueMessage(t.Context(), message("a/user/b", nil)); err != nil {
		t.Error(err)
	}
}

func message(topic string, payload []byte) *telemetry.Message {
	return &telemetry.Message{Topic: topic, Payload: payload, Broker: telemetry.BrokerInternal, User: "a", GatewayTime: time.UnixMilli(2_000_000), ClockSynced: true}
}

// Messages of apps reach their own stream, over a cut, a lost answer and a restart, once and in order, each under the subject of its topic; a call
// that names another node's subjects cannot be made.
func TestMessages_ReachTheHub(t *testing.T) {
	p := newPlant(t)
	stopCloud := p.startCloud()
	_, stop := p.startGateway(limits)
	samplesStop := stop
	store, stopMessages := p.startMessages()
	next := 0
	send := func(count int) {
		t.Helper()
		var last <-chan error
		for range count {
			var err error
			if last, err = store.EnqueueMessage(t.Context(), message("line.3/user/a b//é", []byte(strconv.Itoa(next)))); err != nil {
				t.Fatal(err)
			}
			next++
		}
		if err := <-last; err != nil {
			t.Fatal(err)
		}
	}
	p.losesAnswers.Store(true)
	send(700)
	streamstest.Eventually(t, "messages are stored", func() bool { return p.countOf(subject.MessagesStream) > 0 })
	p.startCloud()
	stopCloud()
	p.losesAnswers.Store(false)
	p.relay.Cut()
	send(700)
	stopMessages()
	samplesStop()
	p.relay.Heal()
	p.startGateway(limits)
	store, _ = p.startMessages()
	send(1)
	streamstest.WaitWithin(t, time.Minute, "all messages", func() bool { return p.countOf(subject.MessagesStream) >= next })
	all := p.storedIn(subject.MessagesStream)
	for i, m := range all {
		if string(m.Data) != strconv.Itoa(i) || m.Header.Get(telemetry.HeaderNumber) != strconv.Itoa(i+1) {
			t.Fatalf("message %d is %s with the number %s", i, m.Data, m.Header.Get(telemetry.HeaderNumber))
		}
	}
	if want := "messages.edge-1.line_3.user.a=20b._.=C3=A9"; all[0].Subject != want {
		t.Errorf("subject %s, want %s", all[0].Subject, want)
	}
	for name, want := range map[string]string{
		telemetry.HeaderNode: node, telemetry.HeaderTopic: "line.3/user/a b//é", telemetry.HeaderUser: "a", telemetry.HeaderBroker: "internal",
		telemetry.HeaderGatewayTime: "1970-01-01T00:33:20.000Z", telemetry.HeaderClock: "synced",
	} {
		if got := all[0].Header.Get(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if p.count() != 0 {
		t.Error("messages are among the samples")
	}
}

// startMessages starts the store and the pump of messages beside those of samples.
func (p *plant) startMessages() (*telemetry.Store, func()) {
	p.Helper()
	own, log, kind := p.leaf.Client(), zaptest.NewLogger(p), telemetry.Messages()
	store, err := telemetry.OpenStore(p.Context(), kind, limits, own, telemetry.NewStoreMetrics(kind, nil), log)
	if err != nil {
		p.Fatal(err)
	}
	pump := telemetry.NewPump(telemetry.PumpConfig{Node: node}, store, own, leafLink{p.leaf}, telemetry.NewPumpMetrics(kind, nil), log)
	stopStore, stopPump := streamstest.StartPart(p.T, store.Start), streamstest.StartPart(p.T, pump.Start)
	return store, func() {
		stopPump()
		stopStore()
	}
}

// A cloudcore stores messages below the node's own name only, whatever their topic is, and refuses what no gateway sends.
func TestMessageReceiver_RefusesGarbage(t *testing.T) {
	hub := streamstest.Hub(t)
	receiver, err := telemetry.NewMessageReceiver(streamstest.Connect(t, hub), telemetry.NewReceiverMetrics(telemetry.Messages(), nil), metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, request := range map[string][]byte{
		"no topic": telemetry.Request(t, "a", `{"n":1,"f":"internal"}`), "wildcard": telemetry.Request(t, "a", `{"n":1,"m":"a/#","f":"internal"}`),
		"newline": telemetry.Request(t, "a", `{"n":1,"m":"a\nb","f":"internal"}`), "no broker": telemetry.Request(t, "a", `{"n":1,"m":"a/user/b"}`),
		"a sample": telemetry.Request(t, "a", `{"n":1,"s":"plant","d":"boiler","p":"c","v":"1"}`),
		"large":    telemetry.Request(t, "a", `{"n":1,"m":"a/user/b","f":"internal","b":"`+strings.Repeat("AAAA", telemetry.MaxPayload/3+1)+`"}`),
		"too long": telemetry.Request(t, "a", `{"n":1,"m":"`+strings.Repeat("a", telemetry.MaxTopic+1)+`","f":"internal"}`),
	} {
		if _, err := receiver.Handle(t.Context(), node, request); !errors.Is(err, wire.ErrPermanent) {
			t.Errorf("%s: %v, want a permanent error", name, err)
		}
	}
	for i, topic := range []string{"../user/x", ">", "*", "edge-2/user/x", "a.b/user/x", "/", "$JS/user/API", "$"} {
		request := telemetry.Request(t, "a", fmt.Sprintf(`{"n":%d,"m":%q,"f":"internal"}`, i+1, topic))
		if _, err := receiver.Handle(t.Context(), node, request); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
	}
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.MessagesStream)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(subject.NodeMessages(node)))
	if err != nil {
		t.Fatal(err)
	}
	if info.State.Msgs != 8 || len(info.State.Subjects) != 8 {
		t.Errorf("%d messages, below the node's name %v", info.State.Msgs, info.State.Subjects)
	}
}

// Requests that no gateway makes are refused, and the reason is told.
func TestReceiver_RefusesGarbage(t *testing.T) {
	hub := streamstest.Hub(t)
	receiver, err := telemetry.NewReceiver(streamstest.Connect(t, hub), assigned, telemetry.NewReceiverMetrics(telemetry.Samples(), nil), metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := receiver.Handle(t.Context(), node, telemetry.Bomb(t)); !errors.Is(err, wire.ErrPermanent) || !errors.Is(err, zstd.ErrDecoderSizeExceeded) {
		t.Errorf("a request that decompresses to 16 MiB: %v", err)
	}
	for name, request := range map[string][]byte{
		"empty": nil, "no lines": []byte(`{"run":"a"}`), "not JSON": []byte("x\ny"), "no run": telemetry.Request(t, "", `{"n":1,"s":"a","d":"b","p":"c","g":1}`),
		"not compressed": []byte(`{"run":"a"}` + "\n" + `{"n":1}`), "no samples": telemetry.Request(t, "a"),
		"null": telemetry.Request(t, "a", "null"), "no number": telemetry.Request(t, "a", `{"s":"a","d":"b","p":"c","v":"1"}`),
		"numbers back": telemetry.Request(t, "a", `{"n":2,"s":"a","d":"b","p":"c"}`, `{"n":2,"s":"a","d":"b","p":"c"}`),
		"wildcard":     telemetry.Request(t, "a", `{"n":1,"s":"*","d":"b","p":"c"}`), "no device": telemetry.Request(t, "a", `{"n":1,"s":"a","d":"","p":"c"}`),
		"no property": telemetry.Request(t, "a", `{"n":1,"s":"a","d":"b","p":""}`), "wrong type": telemetry.Request(t, "a", `{"n":1,"s":"a","d":"b","p":"c","v":1}`),
		"too many": telemetry.Many(t, 1001),
	} {
		if _, err := receiver.Handle(t.Context(), node, request); !errors.Is(err, wire.ErrPermanent) {
			t.Errorf("%s: %v, want a permanent error", name, err)
		}
	}
}

// One request that several cloudcores handle at the same moment, as after a timeout, is stored once.
func TestReceiver_ConcurrentRequestsStoreOnce(t *testing.T) {
	hub := streamstest.Hub(t)
	request := telemetry.Many(t, 300)
	var g errgroup.Group
	for range 4 {
		receiver, err := telemetry.NewReceiver(streamstest.Connect(t, hub), assigned, telemetry.NewReceiverMetrics(telemetry.Samples(), nil), metrics.New(nil), zaptest.NewLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() error {
			for {
				_, err := receiver.Handle(t.Context(), node, request)
				if !errors.Is(err, telemetry.ErrOvertaken) {
					return err
				}
			}
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.TelemetryStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Msgs; n != 300 {
		t.Errorf("%d messages of 300 samples", n)
	}
}

// A cloudcore whose knowledge of a node is outdated stores its samples at once.
func TestReceiver_TakesTurns(t *testing.T) {
	hub := streamstest.Hub(t)
	var receivers []*telemetry.Receiver
	for range 2 {
		receiver, err := telemetry.NewReceiver(streamstest.Connect(t, hub), assigned, telemetry.NewReceiverMetrics(telemetry.Samples(), nil), metrics.New(nil), zaptest.NewLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		receivers = append(receivers, receiver)
	}
	for i := range 6 {
		request := telemetry.Request(t, "a", fmt.Sprintf(`{"n":%d,"s":"plant","d":"boiler","p":"c","v":"1"}`, i+1))
		if _, err := receivers[i%2].Handle(t.Context(), node, request); err != nil {
			t.Errorf("request %d: %v", i+1, err)
		}
	}
}

// Append refuses what the cloud would refuse.
func TestStore_RefusesWhatNoDeviceHas(t *testing.T) {
	p := newPlant(t)
	store, _ := p.startGateway(limits)
	for name, change := range map[string]func(*telemetry.Sample){
		"namespace": func(s *telemetry.Sample) { s.Namespace = "a.b" }, "device": func(s *telemetry.Sample) { s.Device = "A" },
		"property": func(s *telemetry.Sample) { s.Property = "" }, "value": func(s *telemetry.Sample) { s.Value = string(make([]byte, telemetry.MaxValue+1)) },
	} {
		s := sample("boiler", 0)
		change(&s)
		if err := store.Append(t.Context(), telemetry.Exact, []telemetry.Sample{s}); !errors.Is(err, wire.ErrPermanent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What was appended before the store stopped is on disk, also of class Flow; later appends are refused.
func TestStore_StopsInOrder(t *testing.T) {
	p := newPlant(t)
	store, stop := p.startGateway(limits)
	for i := range 100 {
		if err := store.Append(t.Context(), telemetry.Flow, samplesOf(i, i+1)); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := store.Append(t.Context(), telemetry.Flow, samplesOf(100, 101)); !errors.Is(err, telemetry.ErrClosed) {
		t.Errorf("append to a stopped store: %v", err)
	}
	p.startCloud()
	p.startGateway(limits)
	p.expect(100)
}

// BenchmarkToHub is the rate at which the samples of one gateway reach the hub's stream, from a backlog.
func BenchmarkToHub(b *testing.B) {
	hub := leaftest.NewHub(b)
	nc := hub.Conn()
	js, err := jetstream.New(nc)
	if err != nil {
		b.Fatal(err)
	}
	if err := topology.Ensure(b.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		b.Fatal(err)
	}
	receiver, err := telemetry.NewReceiver(nc, assigned, telemetry.NewReceiverMetrics(telemetry.Samples(), nil), metrics.New(nil), zaptest.NewLogger(b))
	if err != nil {
		b.Fatal(err)
	}
	calls, err := call.NewServer(nc, map[string]call.Handler{subject.VerbTelemetry: receiver.Handle}, metrics.New(nil), zaptest.NewLogger(b))
	if err != nil {
		b.Fatal(err)
	}
	l := leaftest.StartLeaf(b, leaf.Config{Dir: b.TempDir(), Hub: []string{leaftest.URL(hub.Addr())}})
	store, err := telemetry.OpenStore(b.Context(), telemetry.Samples(), telemetry.StoreConfig{MaxBytes: 1 << 30, MaxAge: time.Hour}, l.Client(), telemetry.NewStoreMetrics(telemetry.Samples(), nil), zaptest.NewLogger(b))
	if err != nil {
		b.Fatal(err)
	}
	pump := telemetry.NewPump(telemetry.PumpConfig{Node: node}, store, l.Client(), leafLink{l}, telemetry.NewPumpMetrics(telemetry.Samples(), nil), zaptest.NewLogger(b))
	ctx, cancel := context.WithCancel(b.Context())
	var g errgroup.Group
	g.Go(func() error { return calls.Start(ctx) })
	g.Go(func() error { return store.Start(ctx) })
	for i := 0; i < b.N; i += 100 {
		if err := store.Append(b.Context(), telemetry.Exact, samplesOf(i, min(i+100, b.N))); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	g.Go(func() error { return pump.Start(ctx) })
	streamstest.Eventually(b, "all samples in the hub", func() bool {
		stream, err := js.Stream(b.Context(), subject.TelemetryStream)
		return err == nil && stream.CachedInfo().State.LastSeq >= uint64(b.N)
	})
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	cancel()
	if err := g.Wait(); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAppend is the rate at which one gateway's samples of class Exact are stored, from 50 devices at a time.
func BenchmarkAppend(b *testing.B) {
	l := leaftest.StartLeaf(b, leaf.Config{Dir: b.TempDir()})
	store, err := telemetry.OpenStore(b.Context(), telemetry.Samples(), limits, l.Client(), telemetry.NewStoreMetrics(telemetry.Samples(), nil), zaptest.NewLogger(b))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- store.Start(ctx) }()
	b.SetParallelism(25)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if err := store.Append(b.Context(), telemetry.Exact, samplesOf(i, i+1)); err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	cancel()
	if err := <-done; err != nil {
		b.Fatal(err)
	}
}
