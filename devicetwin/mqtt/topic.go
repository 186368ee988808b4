package mqtt

import (
	"errors"
	"fmt"
	"strings"
)

// ErrTopic reports a topic that is not one of KubeEdge's for devices and nodes.
var ErrTopic = errors.New("not a topic of a device or node")

// Kind is what a topic is for. Its value is the part of the topic after the device or node.
type Kind string

// The topics of a device, $hw/events/device/<namespace>/<name>/<kind>. Apps publish TwinUpdate, TwinGet and StateUpdate; the gateway the others.
const (
	TwinUpdate         Kind = "twin/update"
	TwinUpdateResult   Kind = "twin/update/result"
	TwinUpdateDelta    Kind = "twin/update/delta"
	TwinUpdateDocument Kind = "twin/update/document"
	TwinGet            Kind = "twin/get"
	TwinGetResult      Kind = "twin/get/result"
	// TwinCloudUpdated and TwinEdgeUpdated are messages between KubeEdge's cloud and edge. KubeEdge takes the first from any local client; Frond
	// from none.
	TwinCloudUpdated  Kind = "twin/cloud_updated"
	TwinEdgeUpdated   Kind = "twin/edge_updated"
	StateUpdate       Kind = "state/update"
	StateUpdateResult Kind = "state/update/result"
	// DeviceUpdated says that the attributes of a device changed.
	DeviceUpdated Kind = "updated"
)

// The topics of a node, $hw/events/node/<node>/<kind>. Apps publish MembershipGet, the gateway the others.
const (
	MembershipGet       Kind = "membership/get"
	MembershipGetResult Kind = "membership/get/result"
	MembershipUpdated   Kind = "membership/updated"
)

const (
	devicePrefix = "$hw/events/device/"
	nodePrefix   = "$hw/events/node/"
	// maxName is the longest name that an object of Kubernetes can have.
	maxName = 253
)

// Topic is a topic of a device or of a node.
type Topic struct {
	Kind Kind
	// Namespace and Name are the device's; both are empty in a topic of a node.
	Namespace, Name string
	// Node is empty in a topic of a device.
	Node string
}

// DeviceTopic returns a topic of a device.
func DeviceTopic(namespace, name string, kind Kind) Topic {
	return Topic{Kind: kind, Namespace: namespace, Name: name}
}

// NodeTopic returns a topic of a node.
func NodeTopic(node string, kind Kind) Topic { return Topic{Kind: kind, Node: node} }

// String returns the topic as MQTT has it.
func (t Topic) String() string {
	if t.Node != "" {
		return nodePrefix + t.Node + "/" + string(t.Kind)
	}
	return devicePrefix + t.Namespace + "/" + t.Name + "/" + string(t.Kind)
}

// FromApp reports whether apps publish the topic. The other topics are the gateway's alone.
func (t Topic) FromApp() bool {
	switch t.Kind {
	case TwinUpdate, TwinGet, StateUpdate, MembershipGet:
		return true
	default:
		return false
	}
}

// ParseTopic reads a topic. The error is ErrTopic.
func ParseTopic(topic string) (Topic, error) {
	var t Topic
	if rest, ok := strings.CutPrefix(topic, devicePrefix); ok {
		namespace, rest, _ := strings.Cut(rest, "/")
		name, kind, _ := strings.Cut(rest, "/")
		t = DeviceTopic(namespace, name, Kind(kind))
		if validName(namespace) && validName(name) && isDeviceKind(t.Kind) {
			return t, nil
		}
	} else if rest, ok := strings.CutPrefix(topic, nodePrefix); ok {
		node, kind, _ := strings.Cut(rest, "/")
		t = NodeTopic(node, Kind(kind))
		if validName(node) && isNodeKind(t.Kind) {
			return t, nil
		}
	}
	return Topic{}, fmt.Errorf("%w: %q", ErrTopic, clip(topic))
}

func isDeviceKind(k Kind) bool {
	switch k {
	case TwinUpdate, TwinUpdateResult, TwinUpdateDelta, TwinUpdateDocument, TwinGet, TwinGetResult, TwinCloudUpdated, TwinEdgeUpdated,
		StateUpdate, StateUpdateResult, DeviceUpdated:
		return true
	default:
		return false
	}
}

func isNodeKind(k Kind) bool {
	return k == MembershipGet || k == MembershipGetResult || k == MembershipUpdated
}

// validName reports whether an object of Kubernetes can have a name: letters, digits, "-" and ".". Capitals name none, and harm nothing.
func validName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.':
		default:
			return false
		}
	}
	return true
}

// clip shortens what a client sent for an error's text.
func clip(s string) string {
	const longest = 128
	if len(s) > longest {
		return s[:longest] + "…"
	}
	return s
}
