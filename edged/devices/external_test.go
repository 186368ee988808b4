package devices_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/mosquittotest"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

// external makes a gateway one with mosquitto beside or instead of its own broker.
func external(mode string, b *mosquittotest.Broker) func(*config.Devices) {
	return func(d *config.Devices) {
		d.MQTT.Mode, d.MQTT.External.URL, d.MQTT.External.KeepAlive = mode, "tcp://"+b.Addr, config.Duration(3*time.Second)
	}
}

// ear hears all of a broker.
type ear struct {
	mu    sync.Mutex
	heard map[string]int // guarded by mu; by topic
}

func (e *ear) hear(_ paho.Client, m paho.Message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.heard[m.Topic()]++
}

func (e *ear) count(topic string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard[topic]
}

func listen(t *testing.T, app paho.Client) *ear {
	t.Helper()
	e := &ear{heard: map[string]int{}}
	for _, filter := range []string{"#", "$hw/#"} {
		token := app.Subscribe(filter, 1, e.hear)
		if !token.WaitTimeout(10 * time.Second) {
			t.Fatal("no SUBACK")
		}
		kit.Must(t, token.Error())
	}
	return e
}

func at(b *mosquittotest.Broker, id string) func(*paho.ClientOptions) {
	return func(o *paho.ClientOptions) {
		o.Servers = nil
		o.AddBroker("tcp://" + b.Addr).SetClientID(id)
	}
}

func (g *gateway) send(app paho.Client, topic, payload string) {
	g.Helper()
	token := app.Publish(topic, 1, false, payload)
	if !token.WaitTimeout(10 * time.Second) {
		g.Fatal("no PUBACK")
	}
	kit.Must(g, token.Error())
}

// custom returns how many messages of custom topics are on the gateway's disk.
func (g *gateway) custom() (n int) {
	g.Helper()
	js, err := jetstream.New(g.nc)
	kit.Must(g, err)
	stream, err := js.Stream(g.Context(), subject.LeafMessagesStream)
	if err != nil {
		return 0
	}
	for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq && seq > 0; seq++ {
		m, err := stream.GetMsg(g.Context(), seq)
		kit.Must(g, err)
		var count int
		if _, err := fmt.Sscan(m.Header.Get("Frond-Count"), &count); err == nil {
			n += count
		}
	}
	return n
}

// hasCustom reports whether a message of a custom topic with this payload is on the gateway's disk.
func (g *gateway) hasCustom(payload string) bool {
	g.Helper()
	js, err := jetstream.New(g.nc)
	kit.Must(g, err)
	stream, err := js.Stream(g.Context(), subject.LeafMessagesStream)
	if err != nil {
		return false
	}
	decoder, err := zstd.NewReader(nil)
	kit.Must(g, err)
	defer decoder.Close()
	for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq && seq > 0; seq++ {
		m, err := stream.GetMsg(g.Context(), seq)
		kit.Must(g, err)
		text, err := decoder.DecodeAll(m.Data, nil)
		if err == nil && strings.Contains(string(text), base64.StdEncoding.EncodeToString([]byte(payload))) {
			return true
		}
	}
	return false
}

// With an external broker alone, apps there have all that they have with the gateway's own, over restarts of either side, and custom topics
// reach the disk.
func TestDevices_ExternalBroker(t *testing.T) {
	b := mosquittotest.Start(t)
	g := newGateway(t)
	g.setModel("INT")
	g.setDevice("a", "edge-1", "20")
	stop := g.start(external(config.MQTTExternal, b))
	app := g.app(at(b, "app"))
	heard := listen(t, app)
	g.reported("a", `"Differs"`)
	kit.Within(t, 20*time.Second, "frond_mqtt_up", func() bool { return gauge(t, g.metrics, "frond_mqtt_up") == 1 })
	g.publish(app, "a", "20")
	g.reported("a", `"Reported"`)
	const topic = "$hw/events/device/default/a/twin/update"
	kit.Within(t, 20*time.Second, "the result", func() bool { return heard.count(topic+"/result") > 0 })
	g.setDevice("a", "edge-1", "21")
	kit.Within(t, 20*time.Second, "the delta", func() bool { return heard.count(topic+"/delta") > 0 })
	g.send(app, "x/user/y", "the first")
	kit.Within(t, 20*time.Second, "the message is on the disk", func() bool { return g.hasCustom("the first") })
	stop()                    // the answer to the first may not have reached the broker, which then sends it again
	g.publish(app, "a", "21") // the broker keeps them for the gateway's sessions
	g.send(app, "x/user/y", "the second")
	g.start(external(config.MQTTExternal, b))
	g.reported("a", `"21"`)
	kit.Within(t, 20*time.Second, "the second message is on the disk", func() bool { return g.hasCustom("the second") })
	b.Stop()
	kit.Within(t, 20*time.Second, "frond_mqtt_up is 0", func() bool { return gauge(t, g.metrics, "frond_mqtt_up") == 0 })
	b.Start()
	app = g.app(at(b, "app-2"))
	g.send(app, "x/user/y", "the third")
	kit.Within(t, 40*time.Second, "the third message is on the disk", func() bool { return g.hasCustom("the third") })
}

// With both brokers an app at either one drives its device, and is told of changes; no message goes round between them, also if a bridge of
// mosquitto copies all topics of one to the other.
func TestDevices_BothBrokersMakeNoLoop(t *testing.T) {
	g := newGateway(t)
	b := mosquittotest.Start(t, "connection loop", "address "+g.address, "topic # both 1", "topic $hw/# both 1", "remote_clientid bridge", "try_private false", "restart_timeout 1",
		"notifications false")
	g.setModel("INT")
	g.setDevice("a", "edge-1", "20")
	g.setDevice("b", "edge-1", "20")
	g.start(external(config.MQTTBoth, b))
	own, other := g.app(nil), g.app(at(b, "app"))
	heard := listen(t, other)
	g.publish(own, "a", "20")
	g.publish(other, "b", "20")
	g.reported("a", `"Reported"`)
	g.reported("b", `"Reported"`)
	g.send(own, "x/user/y", "1")
	g.send(other, "x/user/y", "2")
	kit.Within(t, 20*time.Second, "the messages are on the disk", func() bool { return g.custom() >= 2 })
	g.setDevice("a", "edge-1", "21")
	kit.Within(t, 20*time.Second, "the delta", func() bool { return heard.count("$hw/events/device/default/a/twin/update/delta") > 0 })
	before := heard.total()
	g.publish(other, "b", "22") // all that went before it has passed
	kit.Within(t, 20*time.Second, "the last result", func() bool { return heard.count("$hw/events/device/default/b/twin/update/result") >= 2 })
	const most = 40 // a loop makes thousands
	if n := heard.total(); n > before+most || n > 2*most {
		t.Errorf("%d messages at the other broker: %v", n, heard.heard)
	}
	if n := g.custom(); n > 4 { // each at both brokers, where a bridge copies it
		t.Errorf("%d messages of 2 are on the disk", n)
	}
}

func (e *ear) total() (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, count := range e.heard {
		n += count
	}
	return n
}

// Messages of an external broker that the disk does not take hold up no device: each has a session of its own.
func TestDevices_ExternalMessagesHoldUpNoDevice(t *testing.T) {
	b := mosquittotest.Start(t, "max_inflight_messages 16")
	g := newGateway(t)
	g.setModel("INT")
	g.setDevice("a", "edge-1", "20")
	g.start(external(config.MQTTExternal, b))
	g.reported("a", `"Differs"`)
	js, err := jetstream.New(g.nc)
	kit.Must(t, err)
	kit.Within(t, 20*time.Second, "the stream of messages", func() bool {
		stream, err := js.Stream(t.Context(), subject.LeafMessagesStream)
		if err != nil {
			return false
		}
		cfg := stream.CachedInfo().Config
		cfg.Sealed = false
		cfg.MaxMsgSize = 1 // each message fails
		_, err = js.UpdateStream(t.Context(), cfg)
		return err == nil
	})
	app := g.app(at(b, "app"))
	for range 32 {
		g.send(app, "x/user/y", strings.Repeat("x", 100))
	}
	kit.Within(t, 20*time.Second, "messages fail", func() bool { return gauge(t, g.metrics, "frond_messages_store_errors_total") > 1 })
	g.publish(app, "a", "20")
	g.reported("a", `"Reported"`)
	stream, err := js.Stream(t.Context(), subject.LeafMessagesStream)
	kit.Must(t, err)
	cfg := stream.CachedInfo().Config
	cfg.MaxMsgSize = -1
	_, err = js.UpdateStream(t.Context(), cfg)
	kit.Must(t, err)
	kit.Within(t, time.Minute, "all messages are on the disk", func() bool { return g.custom() == 32 })
}

// An external broker that does not answer, over a connection that is not yet known to be lost, holds up no device of the gateway's own.
func TestDevices_SilentExternalBrokerHoldsUpNoDevice(t *testing.T) {
	b := mosquittotest.Start(t)
	relay := relaytest.Start(t, b.Addr, relaytest.Config{})
	g := newGateway(t)
	g.setModel("INT")
	g.setDevice("a", "edge-1", "20")
	g.start(func(d *config.Devices) {
		external(config.MQTTBoth, b)(d)
		d.MQTT.External.URL, d.MQTT.External.KeepAlive = "tcp://"+relay.Addr(), config.Duration(10*time.Minute)
	})
	g.reported("a", `"Differs"`)
	other := g.app(at(b, "app"))
	heard := listen(t, other)
	const result = "$hw/events/device/default/a/twin/update/result"
	g.publish(other, "a", "0")
	kit.Within(t, 20*time.Second, "the result at the external broker", func() bool { return heard.count(result) > 0 })
	relay.Silence()
	app := g.app(nil)
	near := &ear{heard: map[string]int{}}
	token := app.Subscribe(result, 1, near.hear)
	if !token.WaitTimeout(10 * time.Second) {
		t.Fatal("no SUBACK")
	}
	kit.Must(t, token.Error())
	const updates = 60
	for i := range updates {
		g.publish(app, "a", fmt.Sprint(i+1))
	}
	kit.Within(t, 30*time.Second, "the results at the own broker", func() bool { return near.count(result) >= updates }) // each in turn takes 2 s and more
	g.reported("a", fmt.Sprintf("%q", fmt.Sprint(updates)))
}

// gauge returns the value of a metric without labels, -1 if there is none.
func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	kit.Must(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}
