package devices_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/config"
	kinds "github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// rateClients is the number of clients of BenchmarkMQTT, each with a device of its own.
const rateClients = 200

// BenchmarkMQTT lets 200 clients publish values with QoS 1 as fast as they have PUBACKs. Each value with a PUBACK must be in the leaf's stream.
func BenchmarkMQTT(b *testing.B) {
	for _, class := range []string{"exact", "flow"} {
		b.Run(class, func(b *testing.B) { benchmarkMQTT(b, class) })
	}
}

// BenchmarkMQTTOneByOne lets one client wait for each PUBACK. Its device may send 1,000 values at once: use -benchtime 800x.
func BenchmarkMQTTOneByOne(b *testing.B) {
	for _, class := range []string{"exact", "flow"} {
		b.Run(class, func(b *testing.B) {
			address, _ := startRateGateway(b, class)
			client := dialRaw(b, address, "d0")
			client.window = 1
			b.ResetTimer()
			kit.Must(b, client.publish(b.N))
		})
	}
}

func benchmarkMQTT(b *testing.B, class string) {
	b.Helper()
	address, nc := startRateGateway(b, class)
	clients := make([]*rawClient, rateClients)
	for i := range clients {
		clients[i] = dialRaw(b, address, "d"+strconv.Itoa(i))
	}
	before := countSamples(b, nc)
	b.ResetTimer()
	var g errgroup.Group
	for i, c := range clients {
		count := b.N / rateClients
		if i < b.N%rateClients {
			count++
		}
		g.Go(func() error { return c.publish(count) })
	}
	kit.Must(b, g.Wait())
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "samples/s")
	if n := awaitSamples(b, nc, before+b.N) - before; n != b.N {
		b.Fatalf("%d of %d values with a PUBACK are in the leaf's stream", n, b.N)
	}
}

// startRateGateway starts a gateway with a device of a class for each client, without a link.
func startRateGateway(b *testing.B, class string) (address string, nc *nats.Conn) {
	b.Helper()
	nc = leaftest.StartLeaf(b, leaf.Config{}).Client()
	js, err := jetstream.New(nc)
	kit.Must(b, err)
	objects, err := store.Open(b.Context(), js, store.Config{}, zap.NewNop())
	kit.Must(b, err)
	apply := func(sequence int, resource, name, object string) {
		kit.Must(b, objects.Apply(b.Context(), []wire.Message{{
			Key: wire.Key{Group: kinds.Group, Resource: resource, Namespace: "default", Name: name}, Op: wire.Apply, UID: "u-" + name,
			Version: strconv.Itoa(sequence), Sequence: uint64(sequence), Object: []byte(object),
		}}, uint64(sequence)))
	}
	apply(1, kinds.DeviceModelsResource, "model", `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"DeviceModel","metadata":{"name":"model","namespace":"default","uid":"u-model",
		"resourceVersion":"1"},"spec":{"properties":[{"name":"temp","type":"INT","accessMode":"ReadWrite"}]}}`)
	for i := range rateClients {
		apply(i+2, kinds.DevicesResource, "d"+strconv.Itoa(i), fmt.Sprintf(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"d%d","namespace":"default",
			"uid":"u-d%d","resourceVersion":"%d","generation":1,"annotations":{"frond.io/durability.temp":%q}},"spec":{"nodeName":"edge-1","deviceModelRef":{"name":"model"},"properties":[{"name":"temp"}]}}`, i, i, i+2, class))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // an address, nothing to wait for
	kit.Must(b, err)
	address = l.Addr().String()
	kit.Must(b, l.Close())
	settings := config.Devices{
		MQTT:      config.MQTT{Mode: config.MQTTInternal, Listen: address, AllowLoopbackAnonymous: true},
		Telemetry: config.Telemetry{MaxMiB: 256, MaxAge: config.Duration(time.Hour)},
	}
	part, err := devices.New(devices.Config{
		Node: "edge-1", Dir: b.TempDir(), Settings: settings, Local: nc, Cloud: nc, Link: streamstest.NewSwitchableLink(), Store: objects, Reports: &outbox{},
		Metrics: prometheus.NewRegistry(),
	}, zap.NewNop())
	kit.Must(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	var g errgroup.Group
	g.Go(func() error { return part.Start(ctx) })
	b.Cleanup(func() {
		cancel()
		kit.Must(b, g.Wait())
	})
	return address, nc
}

// countSamples returns how many samples are in the leaf's stream.
func countSamples(tb testing.TB, nc *nats.Conn) (n int) {
	tb.Helper()
	js, err := jetstream.New(nc)
	kit.Must(tb, err)
	stream, err := js.Stream(tb.Context(), "TELEMETRY")
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0
	}
	kit.Must(tb, err)
	state := stream.CachedInfo().State
	for seq := max(state.FirstSeq, 1); seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(tb.Context(), seq)
		kit.Must(tb, err)
		if count, err := strconv.Atoi(m.Header.Get("Frond-Count")); err == nil {
			n += count
		}
	}
	return n
}

// awaitSamples waits until so many samples are in the leaf's stream, or no more come, and returns their number.
func awaitSamples(tb testing.TB, nc *nats.Conn, want int) int {
	tb.Helper()
	n, last, since := countSamples(tb, nc), -1, time.Now()
	for n < want && (n != last || time.Since(since) < 3*time.Second) {
		if n != last {
			last, since = n, time.Now()
		}
		n = countSamples(tb, nc)
	}
	return n
}

// rawClient is an MQTT 3.1.1 client that costs little.
type rawClient struct {
	conn   net.Conn
	in     *bufio.Reader
	device string
	// window is how many messages it has without a PUBACK.
	window int
}

func dialRaw(tb testing.TB, address, device string) *rawClient {
	tb.Helper()
	c := &rawClient{device: device, window: 64}
	kit.Succeeds(tb, time.Minute, func() error {
		conn, err := (&net.Dialer{}).DialContext(tb.Context(), "tcp", address)
		if err != nil {
			return err
		}
		connect := append([]byte{0x10, byte(12 + len(device)), 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0, 0, byte(len(device))}, device...)
		answer := make([]byte, 4)
		if _, err = conn.Write(connect); err == nil {
			_, err = io.ReadFull(conn, answer)
		}
		if err == nil && answer[3] != 0 {
			err = fmt.Errorf("CONNACK %d", answer[3])
		}
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		c.conn, c.in = conn, bufio.NewReader(conn)
		return nil
	})
	tb.Cleanup(func() { _ = c.conn.Close() }) // it has no more to say
	return c
}

// publish publishes values and returns when it has all PUBACKs.
func (c *rawClient) publish(count int) error {
	window := make(chan struct{}, c.window)
	var g errgroup.Group
	g.Go(func() error {
		answer := make([]byte, 4)
		for i := range count {
			if _, err := io.ReadFull(c.in, answer); err != nil {
				return fmt.Errorf("PUBACK %d of %d: %w", i, count, err)
			}
			if want := uint16(i%65535 + 1); answer[0] != 0x40 || binary.BigEndian.Uint16(answer[2:]) != want { //nolint:gosec // in range
				return fmt.Errorf("%v instead of PUBACK %d", answer, want)
			}
			<-window
		}
		return nil
	})
	topic := "$hw/events/device/default/" + c.device + "/twin/update"
	out := bufio.NewWriter(c.conn)
	for i := range count {
		select {
		case window <- struct{}{}:
		default:
			if err := out.Flush(); err != nil {
				return errors.Join(err, g.Wait())
			}
			window <- struct{}{}
		}
		payload := fmt.Sprintf(`{"event_id":"e","twin":{"temp":{"actual":{"value":"%d"}}}}`, i)
		size := 2 + len(topic) + 2 + len(payload)
		packet := []byte{0x32, byte(size&0x7f | 0x80), byte(size >> 7)}    // between 128 and 16,383
		packet = binary.BigEndian.AppendUint16(packet, uint16(len(topic))) //nolint:gosec // short
		packet = append(packet, topic...)
		packet = binary.BigEndian.AppendUint16(packet, uint16(i%65535+1)) //nolint:gosec // in range
		if _, err := out.Write(append(packet, payload...)); err != nil {
			return errors.Join(err, g.Wait())
		}
	}
	return errors.Join(out.Flush(), g.Wait())
}
