package broker

import (
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/devicetwin/broker/access"
	"github.com/frond-edge/frond/devicetwin/broker/intake"
	"github.com/frond-edge/frond/devicetwin/broker/recovery"
	"github.com/frond-edge/frond/devicetwin/mqtt"
)

const (
	// maxMessage is a payload of full size with its topic and headers.
	maxMessage = mqtt.MaxPayload + 8<<10
	// maxInFlight is how many messages of QoS 1 a client may have unacknowledged, per subscription.
	maxInFlight = 128
	// redelivery is when a client has a message again that it did not acknowledge, also after it was away: nats-server does not send it at once then.
	redelivery = 5 * time.Second
	// maxPerTopic is how many messages of one topic wait for a client that is away; the oldest goes.
	maxPerTopic = 1024
	// maxRetained is how many retained messages there are; the oldest goes. KubeEdge has none.
	maxRetained = 1000
	// maxSessions is how many sessions are kept, of clients that are there or away; the oldest goes.
	maxSessions = 10_000
	// maxMemory is JetStream's memory: no stream and no consumer is in it.
	maxMemory = 8 << 20
	// storeTimeout is how long a client waits for a PUBACK before its connection is closed: longer than package telemetry tries to store a message.
	storeTimeout = 40 * time.Second
	// handshakeTimeout is enough for a microcontroller behind a slow radio.
	handshakeTimeout = 10 * time.Second
	// ownConnections: that of the gateway counts as a client's.
	ownConnections = 1
)

// options returns the server's configuration.
func options(cfg Config, auth server.Authentication) (*server.Options, error) {
	host, port, err := cfg.address()
	if err != nil {
		return nil, err
	}
	o := &server.Options{
		ServerName:                 "mqtt-" + cfg.Node,
		DontListen:                 true,
		NoSigs:                     true,
		MaxPayload:                 maxMessage,
		MaxConn:                    cfg.MaxClients + ownConnections,
		JetStream:                  true,
		JetStreamMaxMemory:         maxMemory,
		JetStreamMaxStore:          cfg.MaxStore,
		StoreDir:                   cfg.Dir,
		CustomClientAuthentication: auth,
		SyncAlways:                 cfg.SyncInterval < 0,
	}
	if cfg.SyncInterval > 0 {
		o.SyncInterval = cfg.SyncInterval
	}
	o.MQTT.Host, o.MQTT.Port = host, port
	o.MQTT.TLSConfig, o.MQTT.TLSTimeout = cfg.TLS, handshakeTimeout.Seconds()
	o.MQTT.MaxAckPending = maxInFlight
	o.MQTT.AckWait = redelivery
	o.MQTT.JSAPITimeout = storeTimeout
	o.MQTT.ConsumerInactiveThreshold = cfg.SessionExpiry
	return o, nil
}

// streams returns the streams of nats-server's MQTT as nats-server would make them, with limits: it gives them none. The parts of the disk that
// they may use make up the whole.
func streams(cfg Config) []jetstream.StreamConfig {
	// Packages inbound and intake answer what is for the gateway and for the cloud, and pass it on.
	subjects := []string{intake.LocalPrefix + ">", recovery.SkipSubject}
	for _, subject := range access.Kept() {
		subjects = append(subjects, stored+subject)
	}
	if cfg.Custom == nil {
		for _, subject := range access.Custom() {
			subjects = append(subjects, stored+subject)
		}
	}
	transform := &jetstream.SubjectTransformConfig{Source: intake.LocalPrefix + ">", Destination: stored + ">"}
	return []jetstream.StreamConfig{
		{
			Name: messagesStream, Subjects: subjects, SubjectTransform: transform, Retention: jetstream.InterestPolicy,
			// New messages are refused when the stream is full: their publishers get no PUBACK and send them again.
			Discard: jetstream.DiscardNew, MaxMsgsPerSubject: maxPerTopic, MaxBytes: cfg.MaxStore / 2, MaxAge: cfg.SessionExpiry,
		},
		{
			Name: "$MQTT_rmsgs", Subjects: []string{"$MQTT.rmsgs.>"}, MaxMsgsPerSubject: 1, MaxMsgs: maxRetained, MaxBytes: cfg.MaxStore / 8,
		},
		{
			Name: "$MQTT_sess", Subjects: []string{"$MQTT.sess.>"}, MaxMsgsPerSubject: 1, MaxMsgs: maxSessions, MaxBytes: cfg.MaxStore / 8,
		},
		{
			Name: "$MQTT_qos2in", Subjects: []string{"$MQTT.qos2.in.>"}, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
			MaxMsgsPerSubject: 1, MaxBytes: cfg.MaxStore / 8, MaxAge: cfg.SessionExpiry,
		},
		{
			Name: "$MQTT_out", Subjects: []string{"$MQTT.out.>"}, Retention: jetstream.InterestPolicy, MaxBytes: cfg.MaxStore / 8, MaxAge: cfg.SessionExpiry,
		},
	}
}
