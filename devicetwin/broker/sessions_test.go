package broker_test

import (
	"slices"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/test/kit"
)

// resume connects an app that keeps its session, and reports whether the broker has it.
func (r *running) resume(t *testing.T, clientID string) (a *app, present bool) {
	t.Helper()
	a = &app{received: make(chan paho.Message, 4096)}
	kit.Succeeds(t, 20*time.Second, func() error {
		a.Client = paho.NewClient(r.options(clientID).SetCleanSession(false).SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { a.received <- m }))
		token := a.Connect().(*paho.ConnectToken)
		token.WaitTimeout(10 * time.Second)
		present = token.SessionPresent()
		return token.Error()
	})
	t.Cleanup(func() { a.Disconnect(100) })
	return a, present
}

// keep connects an app that keeps its session, with subscriptions, and lets it go. It returns the consumers that the app has.
func (r *running) keep(t *testing.T, clientID string, topics ...string) (own []string) {
	t.Helper()
	before := r.consumers(t)
	a, present := r.resume(t, clientID)
	if present {
		t.Fatal("a new app has a session")
	}
	for _, topic := range topics {
		a.subscribe(t, topic, 1)
	}
	for _, name := range r.consumers(t) { // while the app is there, so that none has expired
		if !slices.Contains(before, name) {
			own = append(own, name)
		}
	}
	a.Disconnect(0)
	return own
}

// consumers returns the consumers of the stream of messages.
func (r *running) consumers(t *testing.T) (names []string) {
	t.Helper()
	stream, err := r.JetStream().Stream(t.Context(), "$MQTT_msgs")
	kit.Must(t, err)
	for name := range stream.ConsumerNames(t.Context()).Name() {
		names = append(names, name)
	}
	return names
}

// obeys checks that an app has no session, and gets an answer after it has subscribed anew.
func (r *running) obeys(t *testing.T, clientID string) {
	t.Helper()
	a, present := r.resume(t, clientID)
	if present {
		t.Errorf("%s is told that its subscriptions are there", clientID)
	}
	a.subscribe(t, device+"t1/twin/update/result", 1)
	a.publish(t, device+"t1/twin/update", `{"event_id":"e","twin":{"temp":{"actual":{"value":"21"}}}}`, 1)
	a.expect(t, device+"t1/twin/update/result")
}

// An app that was away for longer than its session lasts is told that it has none, while the broker keeps running, so that it subscribes anew.
func TestSessions_ExpiredIsForgotten(t *testing.T) {
	b := start(t, newTwinStore(), func(c *broker.Config) { c.SessionExpiry = 5 * time.Second }, "t1")
	own := b.keep(t, "away", device+"t1/twin/update/result")
	kit.Within(t, time.Minute, "the broker gives up what the app has subscribed", func() bool { return !slices.Contains(b.consumers(t), own[0]) })
	b.obeys(t, "away")
}

// A session that has lost one of its subscriptions is forgotten, also over a restart, and one that cannot be read does not keep its app away and leaves
// no consumers. A whole one stays.
func TestSessions_DamagedIsForgotten(t *testing.T) {
	store, dir := newTwinStore(), t.TempDir()
	configure := func(c *broker.Config) { c.Dir = dir }
	b := start(t, store, configure, "t1")
	const result, delta = device + "t1/twin/update/result", device + "t1/twin/update/delta"
	b.keep(t, "whole", result)
	deaf := b.keep(t, "deaf", result, delta)
	b.keep(t, "empty")
	damaged := b.keep(t, "damaged", result, delta)
	kit.Must(t, b.JetStream().DeleteConsumer(t.Context(), "$MQTT_msgs", deaf[0]))
	sessions, err := b.JetStream().Stream(t.Context(), "$MQTT_sess")
	kit.Must(t, err)
	last, err := sessions.GetMsg(t.Context(), sessions.CachedInfo().State.LastSeq)
	kit.Must(t, err)
	_, err = b.JetStream().Publish(t.Context(), last.Subject, []byte("\x00\x00"))
	kit.Must(t, err)
	b.stop()
	b = start(t, store, configure, "t1")
	b.obeys(t, "deaf")
	b.obeys(t, "damaged")
	if left := b.consumers(t); len(damaged) != 2 || slices.ContainsFunc(damaged, func(name string) bool { return slices.Contains(left, name) }) {
		t.Errorf("of the consumers %v of a session that cannot be read some are left: %v", damaged, left)
	}
	b.obeys(t, "empty")
	if _, present := b.resume(t, "whole"); !present {
		t.Error("a whole session is forgotten")
	}
}
