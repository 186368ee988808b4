package broker

import (
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/mqtt"
)

const (
	// stored is the prefix of the subjects under which nats-server stores messages of QoS 1 and 2.
	stored = "$MQTT.msgs."
	// qosHeader is nats-server's header with the QoS of a message. A message to a client has it, too.
	qosHeader = "Nmqtt-Pub"

	anyDevice = "$hw.events.device.*.*."
	anyNode   = "$hw.events.node.*."
	events    = "$hw.events.>"
	localData = "$ke.events.device.>" // between mappers and apps of the gateway; Frond does not read it
)

// appKinds are the kinds of device topics that apps publish.
var appKinds = [...]mqtt.Kind{mqtt.TwinUpdate, mqtt.TwinGet, mqtt.StateUpdate} //nolint:gochecknoglobals // a constant

// subjectOf returns the subject of a topic that has neither white space nor empty levels, as nats-server writes it.
func subjectOf(topic string) string {
	return strings.NewReplacer(".", "//", "/", ".").Replace(topic)
}

// topicOf returns the topic of a subject.
func topicOf(subject string) string {
	return strings.NewReplacer("//", ".", ".", "/").Replace(subject)
}

// inbound returns the subjects of all that apps publish to the gateway.
func inbound() []string {
	subjects := make([]string, 0, len(appKinds)+1)
	for _, kind := range appKinds {
		subjects = append(subjects, anyDevice+subjectOf(string(kind)))
	}
	return append(subjects, anyNode+subjectOf(string(mqtt.MembershipGet)))
}

// anonymousPermissions are those of KubeEdge's apps: the topics of all devices, but none of the gateway's own messages.
func anonymousPermissions() *server.Permissions {
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: append(inbound(), localData)},
		Subscribe: &server.SubjectPermission{Allow: []string{events, localData, strings.TrimSuffix(events, ".>"), strings.TrimSuffix(localData, ".>")}},
	}
}

// devicePermissions are those of a user: the topics of its devices.
func devicePermissions(devices []types.NamespacedName) *server.Permissions {
	publish, subscribe := []string{}, []string{}
	for _, d := range devices {
		for _, kind := range appKinds {
			publish = append(publish, subjectOf(mqtt.DeviceTopic(d.Namespace, d.Name, kind).String()))
		}
		root := subjectOf(strings.TrimSuffix(mqtt.DeviceTopic(d.Namespace, d.Name, "").String(), "/"))
		subscribe = append(subscribe, root, root+".>") // "#" is both
	}
	if len(devices) == 0 { // an empty list would allow all
		return &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{">"}}, Subscribe: &server.SubjectPermission{Deny: []string{">"}}}
	}
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe}}
}
