package broker_test

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/test/kit"
)

// newUser returns a user of one device, whose password is "pw-" and its name.
func newUser(t testing.TB, name string, devices ...string) broker.User {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte("pw-"+name), bcrypt.MinCost)
	kit.Must(t, err)
	u := broker.User{Name: name, PasswordHash: string(hash)}
	for _, d := range devices {
		u.Devices = append(u.Devices, types.NamespacedName{Namespace: "default", Name: d})
	}
	return u
}

// startGuarded runs a broker with a user for each of the devices t1 and t2, and one without devices.
func startGuarded(t testing.TB, anonymous bool) *running {
	t.Helper()
	b := start(t, newTwinStore(), func(c *broker.Config) {
		c.AllowAnonymous, c.Users = anonymous, []broker.User{newUser(t, "t1", "t1"), newUser(t, "t2", "t2"), newUser(t, "none")}
	})
	b.setDevice(t, "t1", "", 1)
	b.setDevice(t, "t2", "", 1)
	return b
}

func (r *running) as(name, clientID string) *paho.ClientOptions {
	return r.options(clientID).SetUsername(name).SetPassword("pw-" + name)
}

// refused reports whether a log-in is refused.
func refused(t testing.TB, o *paho.ClientOptions) bool {
	t.Helper()
	c := paho.NewClient(o)
	token := c.Connect()
	if !token.WaitTimeout(10 * time.Second) {
		t.Fatal("no answer to a log-in")
	}
	if token.Error() == nil {
		c.Disconnect(100)
	}
	return token.Error() != nil
}

// TestGuards_LogIn is G1 and G3: who may connect, and with which client id.
func TestGuards_LogIn(t *testing.T) {
	closed, open := startGuarded(t, false), startGuarded(t, true)
	for name, tt := range map[string]struct {
		options *paho.ClientOptions
		refused bool
	}{
		"user":                       {closed.as("t1", "t1"), false},
		"user, second app":           {closed.as("t1", "t1/app"), false},
		"wrong password":             {closed.as("t1", "t1").SetPassword("pw-t2"), true},
		"no password":                {closed.as("t1", "t1").SetPassword(""), true},
		"unknown user":               {closed.as("t3", "t3"), true},
		"the gateway's own user":     {closed.as("frond", "frond"), true},
		"client id of another":       {closed.as("t1", "t2"), true},
		"client id of another's app": {closed.as("t1", "t2/app"), true},
		"client id like another's":   {closed.as("t1", "t1x"), true},
		"no client id":               {closed.as("t1", ""), true},
		"anonymous":                  {closed.options("x"), true},
		"anonymous, allowed":         {open.options("x"), false},
		"anonymous, id of a user":    {open.options("t1"), true},
		"anonymous, id of an app":    {open.options("t1/app"), true},
		"anonymous, no client id":    {open.options(""), false},
	} {
		if got := refused(t, tt.options); got != tt.refused {
			t.Errorf("%s: refused is %v, want %v", name, got, tt.refused)
		}
	}
	if closed.counter(t, "frond_mqtt_refused_total", "login") == 0 {
		t.Error("refused log-ins are not counted")
	}
}

// TestGuards_SessionIsNotTakenOver is G3: the messages that wait for a user's client stay with it.
func TestGuards_SessionIsNotTakenOver(t *testing.T) {
	b := startGuarded(t, true)
	a := connect(t, b.as("t1", "t1").SetCleanSession(false))
	a.subscribe(t, device+"t1/twin/get/result", 1)
	if !refused(t, b.as("t2", "t1").SetCleanSession(false)) || !refused(t, b.options("t1").SetCleanSession(false)) {
		t.Error("the session of t1 was given to another user")
	}
	a.publish(t, device+"t1/twin/get", `{"event_id":"still"}`, 1)
	if got := a.expect(t, device+"t1/twin/get/result"); got["event_id"] != "still" {
		t.Errorf("got %v", got)
	}
}

// TestGuards_Subscribe is G1.
func TestGuards_Subscribe(t *testing.T) {
	b := startGuarded(t, true)
	for name, a := range map[string]*app{"user": connect(t, b.as("t1", "t1")), "none": connect(t, b.as("none", "none")), "anonymous": b.newApp(t)} {
		for filter, may := range map[string]string{
			device + "t1/#":                   "user anonymous",
			device + "t1/twin/update/delta":   "user anonymous",
			device + "t2/twin/update/delta":   "anonymous",
			"$hw/events/device/+/+/twin/+":    "anonymous",
			"$hw/#":                           "",
			"#":                               "",
			"+/#":                             "",
			"$MQTT/#":                         "",
			"$JS/#":                           "",
			"_INBOX/#":                        "",
			"$SYS/#":                          "",
			"$ke/events/device/a/data/update": "anonymous",
		} {
			token := a.Subscribe(filter, 1, nil).(*paho.SubscribeToken)
			if !token.WaitTimeout(10 * time.Second) {
				t.Fatalf("%s, %s: no answer", name, filter)
			}
			if granted := token.Result()[filter] <= 2; granted != strings.Contains(may, name) {
				t.Errorf("%s may subscribe to %s: %v", name, filter, granted)
			}
		}
	}
}

// TestGuards_Publish is G1 and G5: a message that may not be published reaches nobody, neither as a message nor as a will (G2), retained or not.
func TestGuards_Publish(t *testing.T) {
	b := startGuarded(t, true)
	spy := b.newApp(t, "$hw/events/device/#", "$hw/events/node/#", "$ke/events/device/#")
	drain := func() (topics []string) {
		spy.publish(t, "$ke/events/device/end", "end", 1)
		for m := range spy.received {
			if m.Topic() == "$ke/events/device/end" {
				return topics
			}
			topics = append(topics, m.Topic())
		}
		return nil
	}
	forbidden := map[string][]string{
		"t1": {
			device + "t2/twin/update", device + "t2/state/update", device + "t1/twin/update/delta", device + "t1/twin/update/result", device + "t1/x",
			device + "t1/twin/update/document", device + "t1/twin/cloud_updated", device + "t1/twin/edge_updated", "$hw/events/node/edge-1/membership/get",
			"$MQTT/msgs/$hw/events/device/default/t2/twin/update", "$JS/API/STREAM/DELETE/$MQTT_msgs", "$ke/events/device/a/data/update",
		},
		"": {
			device + "t1/twin/update/delta", device + "t1/twin/cloud_updated", device + "t1/twin/get/result", "$hw/events/node/edge-1/membership/updated",
			"$MQTT/msgs/$hw/events/device/default/t2/twin/update/delta", "$JS/API/STREAM/DELETE/$MQTT_msgs", "$hw/events/device/t1/twin/update",
		},
		"none": {device + "t1/twin/update", "x"},
	}
	for name, topics := range forbidden {
		o := func() *paho.ClientOptions {
			if name == "" {
				return b.options("someone")
			}
			return b.as(name, name)
		}
		for _, topic := range topics {
			a := connect(t, o())
			for _, qos := range []byte{0, 1, 2} {
				wait(t, a.Publish(topic, qos, true, `{"event_id":"forged"}`))
			}
			a.Disconnect(100)
			withWill(t, o().SetWill(topic, `{"event_id":"will"}`, 1, true))
		}
		if got := drain(); len(got) != 0 {
			t.Errorf("%q got through with %v", name, got)
		}
	}
	late := b.newApp(t)
	late.subscribe(t, "$hw/events/device/#", 1)
	late.quiet(t) // nothing was retained
	if b.counter(t, "frond_mqtt_broker_errors_total", "") == 0 {
		t.Error("refused messages are not counted")
	}
	// A permitted will arrives.
	withWill(t, b.as("t1", "t1").SetWill(device+"t1/state/update", `{"event_id":"w","state":"offline"}`, 1, false))
	kit.Within(t, 10*time.Second, "the will is handled", func() bool { return b.counter(t, "frond_mqtt_messages_total", "state/update") == 1 })
}

// withWill connects a client and cuts its connection, so that its will is sent.
func withWill(t testing.TB, o *paho.ClientOptions) {
	t.Helper()
	var conn net.Conn
	o.SetCustomOpenConnectionFn(func(uri *url.URL, _ paho.ClientOptions) (net.Conn, error) {
		var err error
		conn, err = new(net.Dialer).DialContext(t.Context(), "tcp", uri.Host)
		return conn, err
	})
	c := logIn(t, o)
	kit.Must(t, conn.Close())
	c.Disconnect(0)
}

// TestGuards_Limits is G4.
func TestGuards_Limits(t *testing.T) {
	b := start(t, newTwinStore(), func(c *broker.Config) { c.MaxClients = 2 })
	b.setDevice(t, "t1", "", 1)
	first := b.newApp(t)
	lost := make(chan struct{})
	large := connect(t, b.options("large").SetConnectionLostHandler(func(paho.Client, error) { close(lost) }))
	if !refused(t, b.options("third")) {
		t.Error("a third client of two")
	}
	large.Publish(device+"t1/twin/update", 1, false, strings.Repeat("x", 300<<10))
	kit.Receive(t, "the end of a client with a packet of 300 KiB", lost)
	first.subscribe(t, device+"t1/twin/update/result", 1)
	first.publish(t, device+"t1/twin/update", strings.Repeat(" ", 256<<10)+"{}", 1) // fits a packet, but is too large
	if got := first.expect(t, device+"t1/twin/update/result"); got["code"] != 400.0 {
		t.Errorf("got %v", got)
	}
}

func TestConfig_Validate(t *testing.T) {
	good := broker.Config{Node: "n", Dir: "d"}
	for want, change := range map[string]func(*broker.Config){
		"":                    func(*broker.Config) {},
		"node is empty":       func(c *broker.Config) { c.Node = "" },
		"dir is empty":        func(c *broker.Config) { c.Dir = "" },
		"listen: ":            func(c *broker.Config) { c.Listen = "1883" },
		"the port":            func(c *broker.Config) { c.Listen = "127.0.0.1:mqtt" },
		"only on a loopback":  func(c *broker.Config) { c.Listen, c.AllowAnonymous = "0.0.0.0:1883", true },
		"maxClients is below": func(c *broker.Config) { c.MaxClients = -1 },
		"maxStore is below":   func(c *broker.Config) { c.MaxStore = 1 },
		"has a slash":         func(c *broker.Config) { c.Users = []broker.User{newUser(t, "a/b")} },
		"is there twice":      func(c *broker.Config) { c.Users = []broker.User{newUser(t, "a"), newUser(t, "a")} },
		"the password of a":   func(c *broker.Config) { c.Users = []broker.User{{Name: "a", PasswordHash: "secret"}} },
	} {
		cfg := good
		change(&cfg)
		if err := cfg.Validate(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestServer_PortIsTaken: on many gateways another broker has the port.
func TestServer_PortIsTaken(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.Must(t, err)
	defer func() { _ = l.Close() }()
	cfg := broker.Config{Node: "edge-1", Dir: t.TempDir(), Listen: l.Addr().String()}
	b, err := broker.New(cfg, devicetwin.NewTwins(newTwinStore(), time.Now), zap.NewNop())
	kit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := b.Start(ctx); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("start on a port that is taken: %v", err)
	}
}
