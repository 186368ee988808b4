// Package broker is the MQTT broker of a gateway, and the bridge between its topics and the twins of the gateway's devices.
//
// Server is nats-server's MQTT 3.1.1 in a NATS server of its own: its own folder, no listener but MQTT's, no link to any other server. It says who may
// connect, publish and subscribe. Bridge answers what apps publish: a message changes the twin, the twin is stored, then the answers go out.
//
// A PUBACK means that the message is handled: its values are in the store of the twins and with the Recorder, synced, or its result says why not.
// Messages of QoS 1 and 2 are handled at least once, in the order in which the broker took them; those of QoS 0 at most once. What the broker keeps
// itself, sessions and messages to apps, is synced within Config.SyncInterval.
package broker
