// Package external is the client of an MQTT broker that somebody else runs on or near the gateway, such as mosquitto.
//
// A message of QoS 1 is acknowledged when its handler says so. What the broker sends again after a lost connection is recognized by its packet id,
// topic and payload, and handled once as long as edgecore runs; messages that were not acknowledged when edgecore ended are handled again. A broker
// that loses the session, as mosquitto without persistence does when it ends, loses what it had and edgecore had not.
package external
