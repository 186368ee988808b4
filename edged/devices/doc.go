// Package devices runs what a gateway has for its devices: the MQTT broker with the twins, fed with the Devices of the gateway's store, the
// way of samples to the hub, and the reports of what devices say.
package devices
