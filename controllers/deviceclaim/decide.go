package deviceclaim

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
)

// gatewayState is what is known of the gateway that holds a device.
type gatewayState int

const (
	connected    gatewayState = iota
	away                      // it may drive its devices
	missing                   // its Node was deleted
	revoked                   // an operator has revoked it
	outOfService              // its Node has Kubernetes' taint for machines that are known to be off
	noGateway                 // its Node is no gateway's
)

// gatewayOf reads a Node, which is nil if there is none.
func gatewayOf(node *corev1.Node) gatewayState {
	if node == nil {
		return missing
	}
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService {
			return outOfService
		}
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != names.ConditionConnected:
		case c.Status == corev1.ConditionTrue:
			return connected
		case c.Reason == names.ReasonRevoked:
			return revoked
		default:
			return away
		}
	}
	if _, edge := node.Labels[names.LabelEdge]; edge {
		return away
	}
	return noGateway
}

// input is what a decision about one device needs.
type input struct {
	// node is spec.nodeName, claimed and forced are the annotations; each may be "".
	node, claimed, forced string
	// gateway is the state of the gateway of claimed.
	gateway gatewayState
	// removed: the gateway of claimed has confirmed that it has removed the Device.
	removed bool
}

// action is what is to be done with a claim, the most urgent last.
type action int

const (
	keep        action = iota // it is right
	wait                      // the holder may drive the device
	removeOrder               // it is right, and an order to force a move, which would force a later one, goes
	claim                     // the node of a Device that nobody has claimed claims it
	release                   // the claim passes to the node that the Device names now, or ends if it names none
)

// The causes of a release, values of a metric.
const (
	causeRemoved      = "removed"
	causeForced       = "forced"
	causeMissing      = "node_missing"
	causeRevoked      = "node_revoked"
	causeOutOfService = "out_of_service"
	causeNoGateway    = "no_gateway"
)

// decide returns what is to be done with the claim of a device, and the cause of a release.
func decide(in input) (do action, cause string) {
	switch {
	case in.claimed == in.node && in.forced != "":
		return removeOrder, ""
	case in.claimed == in.node:
		return keep, ""
	case in.claimed == "":
		return claim, ""
	case in.removed:
		return release, causeRemoved
	case in.forced == in.claimed:
		return release, causeForced
	}
	switch in.gateway {
	case missing:
		return release, causeMissing
	case revoked:
		return release, causeRevoked
	case outOfService:
		return release, causeOutOfService
	case noGateway:
		return release, causeNoGateway
	case connected, away:
	}
	return wait, ""
}
