// Package broker is the MQTT broker of a gateway, and the bridge between its topics and the twins of the gateway's devices.
//
// Server is nats-server's MQTT 3.1.1 in a NATS server of its own: its own folder, no listener but MQTT's, no link to any other server. It says who may
// connect, publish and subscribe. Bridge answers what apps publish: a message changes the twin, the twin is stored, then the answers go out.
//
// A PUBACK means that the message is in the broker's stream, which is synced within Config.SyncInterval. The result means that the value is in the
// store of the twins, synced. A message of QoS 1 is handled at least once, in the order in which the broker took it; one of QoS 0 at most once.
package broker
