package gateway

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
)

const defaultKubeletPort = 10250

// Node is the part of a Kubernetes Node that the gateway needs.
type Node struct {
	UID types.UID
	// Edge says that the node is reached through a tunnel.
	Edge bool
	// Offline says that its heartbeats have stopped; Since is when that was detected.
	Offline bool
	Since   time.Time
	// KubeletPort is the port of its kubelet.
	KubeletPort uint16
	// Address is an IP address of a node that is not an edge node; "" if it has none.
	Address string
}

// NodeOf converts a Node. A node without the link condition counts as connected.
func NodeOf(object *corev1.Node) Node {
	n := Node{UID: object.UID, KubeletPort: defaultKubeletPort}
	if port := object.Status.DaemonEndpoints.KubeletEndpoint.Port; port > 0 && port <= 65535 {
		n.KubeletPort = uint16(port)
	}
	_, n.Edge = object.Labels[names.LabelEdge]
	for _, c := range object.Status.Conditions {
		if c.Type == names.ConditionConnected {
			n.Edge = true
			n.Offline, n.Since = c.Status != corev1.ConditionTrue, c.LastTransitionTime.Time
		}
	}
	for _, a := range object.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && n.Address == "" {
			n.Address = a.Address
		}
	}
	return n
}

// silentReason returns a text for users why a node does not answer. heard is its last heartbeat, zero if there was none.
func (n Node) silentReason(name string, heard, now time.Time) string {
	when := func(t time.Time) string {
		return fmt.Sprintf("%s (%s ago)", t.UTC().Format(time.RFC3339), now.Sub(t).Round(time.Second))
	}
	switch {
	case n.Offline && heard.After(n.Since):
		return fmt.Sprintf("node %s was offline and has only just come back: try again", name)
	case n.Offline:
		return fmt.Sprintf("node %s is offline since %s", name, when(n.Since))
	case !heard.IsZero():
		return fmt.Sprintf("node %s does not answer, its last heartbeat came at %s", name, when(heard))
	}
	return fmt.Sprintf("node %s does not answer", name)
}
