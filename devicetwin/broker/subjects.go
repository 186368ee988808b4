package broker

const (
	// stored is the prefix of the subjects under which nats-server stores messages of QoS 1 and 2.
	stored = "$MQTT.msgs."
	// qosHeader is nats-server's header with the QoS of a message. A message to a client has it, too.
	qosHeader = "Nmqtt-Pub"
)
