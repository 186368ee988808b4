package access

import (
	"slices"
	"strings"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/frond-edge/frond/devicetwin/messages"
	"github.com/frond-edge/frond/devicetwin/mqtt"
)

const (
	anyDevice = "$hw.events.device.*.*."
	anyNode   = "$hw.events.node.*."
	events    = "$hw.events.>"
	localData = "$ke.events.device.>" // between mappers and apps of the gateway; Frond does not read it
)

// appKinds are the kinds of device topics that apps publish.
var appKinds = [...]mqtt.Kind{mqtt.TwinUpdate, mqtt.TwinGet, mqtt.StateUpdate} //nolint:gochecknoglobals // a constant

// SubjectOf returns the subject of a topic that has neither white space nor empty levels, as nats-server writes it.
func SubjectOf(topic string) string {
	return strings.NewReplacer(".", "//", "/", ".").Replace(topic)
}

// TopicOf returns the topic of a subject.
func TopicOf(subject string) string {
	levels := strings.Split(subject, ".")
	for i, level := range levels {
		if levels[i] = strings.ReplaceAll(level, "//", "."); level == "/" {
			levels[i] = "" // an empty level
		}
	}
	return strings.Join(levels, "/")
}

// Inbound returns the subjects of all that apps publish to the gateway.
func Inbound() []string {
	subjects := make([]string, 0, len(appKinds)+1)
	for _, kind := range appKinds {
		subjects = append(subjects, anyDevice+SubjectOf(string(kind)))
	}
	return append(subjects, anyNode+SubjectOf(string(mqtt.MembershipGet)))
}

// Custom returns the subjects of the custom topics, which go to the cloud.
func Custom() (subjects []string) {
	for _, filter := range messages.Filters() {
		subjects = append(subjects, filterSubjects(filter)...)
	}
	return subjects
}

// filterSubjects returns the subjects of an MQTT filter: "#" is also the level before it.
func filterSubjects(filter string) []string {
	subject := strings.ReplaceAll(SubjectOf(filter), "+", "*")
	if parent, ok := strings.CutSuffix(subject, ".#"); ok {
		return []string{parent, parent + ".>"}
	}
	return []string{subject}
}

// Events returns the subject of all events.
func Events() string { return events }

// IsOfDevices reports whether a subject is below those of devices or of the node: what an app publishes there is for the gateway.
func IsOfDevices(subject string) bool {
	return strings.HasPrefix(subject, "$hw.events.device.") || strings.HasPrefix(subject, "$hw.events.node.")
}

// Kept returns the subjects of what apps publish for apps of this gateway alone, beside the custom topics.
func Kept() []string { return []string{localData} }

// anonymousPermissions are those of KubeEdge's apps: the topics of all devices, but none of the gateway's own messages, and none of a user's.
func anonymousPermissions(users map[string]User) *server.Permissions {
	var deny []string
	for name := range users {
		deny = append(deny, userSubjects(name)...)
	}
	subscribe := []string{events, localData, strings.TrimSuffix(events, ".>"), strings.TrimSuffix(localData, ".>")}
	return &server.Permissions{
		Publish:   &server.SubjectPermission{Allow: slices.Concat(Inbound(), []string{localData}, Custom()), Deny: deny},
		Subscribe: &server.SubjectPermission{Allow: append(subscribe, Custom()...), Deny: deny},
	}
}

// userSubjects are those of the custom topics of a user.
func userSubjects(name string) []string { return filterSubjects(name + "/user/#") }

// userPermissions are those of a user: the topics of its devices, and its own custom topics.
func userPermissions(user User) *server.Permissions {
	publish, subscribe := userSubjects(user.Name), userSubjects(user.Name)
	for _, d := range user.Devices {
		for _, kind := range appKinds {
			publish = append(publish, SubjectOf(mqtt.DeviceTopic(d.Namespace, d.Name, kind).String()))
		}
		root := SubjectOf(strings.TrimSuffix(mqtt.DeviceTopic(d.Namespace, d.Name, "").String(), "/"))
		subscribe = append(subscribe, root, root+".>") // "#" is both
	}
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe}}
}
