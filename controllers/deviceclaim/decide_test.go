package deviceclaim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/names"
)

func TestDecide(t *testing.T) {
	for name, tt := range map[string]struct {
		in    input
		do    action
		cause string
	}{
		"new":                                  {input{node: "a"}, claim, ""},
		"of no node":                           {input{}, keep, ""},
		"at its node":                          {input{node: "a", claimed: "a", gateway: away}, keep, ""},
		"at its node, removed":                 {input{node: "a", claimed: "a", removed: true}, keep, ""},      // moved there and back
		"at its node, forced":                  {input{node: "a", claimed: "a", forced: "a"}, removeOrder, ""}, // else it would force a later move
		"at its node, ordered for another":     {input{node: "b", claimed: "b", forced: "a"}, removeOrder, ""},
		"of no node, forced":                   {input{forced: "a"}, removeOrder, ""},
		"moved":                                {input{node: "b", claimed: "a"}, wait, ""},
		"moved, old one away":                  {input{node: "b", claimed: "a", gateway: away}, wait, ""},
		"moved and removed":                    {input{node: "b", claimed: "a", removed: true}, release, causeRemoved},
		"removed, and away since":              {input{node: "b", claimed: "a", removed: true, gateway: away}, release, causeRemoved},
		"forced":                               {input{node: "b", claimed: "a", forced: "a", gateway: away}, release, causeForced},
		"forced for the new node":              {input{node: "b", claimed: "a", forced: "b", gateway: away}, wait, ""},
		"forced at an earlier move":            {input{node: "c", claimed: "b", forced: "a", gateway: away}, wait, ""},
		"forced by a word":                     {input{node: "b", claimed: "a", forced: "true", gateway: away}, wait, ""},
		"old Node deleted":                     {input{node: "b", claimed: "a", gateway: missing}, release, causeMissing},
		"old Node revoked":                     {input{node: "b", claimed: "a", gateway: revoked}, release, causeRevoked},
		"old Node out of service":              {input{node: "b", claimed: "a", gateway: outOfService}, release, causeOutOfService},
		"old Node is no gateway":               {input{node: "b", claimed: "a", gateway: noGateway}, release, causeNoGateway},
		"taken off its node":                   {input{claimed: "a", gateway: away}, wait, ""},
		"taken off its node and removed":       {input{claimed: "a", removed: true}, release, causeRemoved},
		"at its node, which is out of service": {input{node: "a", claimed: "a", gateway: outOfService}, keep, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if do, cause := decide(tt.in); do != tt.do || cause != tt.cause {
				t.Errorf("decide = %d %q, want %d %q", do, cause, tt.do, tt.cause)
			}
		})
	}
}

func TestGatewayOf(t *testing.T) {
	node := func(status corev1.ConditionStatus, reason string, taints ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{names.LabelEdge: ""}}}
		if status != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}, {Type: names.ConditionConnected, Status: status, Reason: reason}}
		}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
		}
		return n
	}
	for name, tt := range map[string]struct {
		node *corev1.Node
		want gatewayState
	}{
		"none":           {nil, missing},
		"connected":      {node(corev1.ConditionTrue, names.ReasonHeartbeatsArrive), connected},
		"away":           {node(corev1.ConditionFalse, names.ReasonNoHeartbeat), away},
		"unknown":        {node(corev1.ConditionUnknown, ""), away},
		"revoked":        {node(corev1.ConditionFalse, names.ReasonRevoked), revoked},
		"not heard yet":  {node("", ""), away},
		"out of service": {node(corev1.ConditionFalse, names.ReasonNoHeartbeat, corev1.TaintNodeOutOfService), outOfService},
		"unreachable":    {node(corev1.ConditionFalse, names.ReasonNoHeartbeat, corev1.TaintNodeUnreachable), away},
		"a server":       {&corev1.Node{}, noGateway},
	} {
		t.Run(name, func(t *testing.T) {
			if got := gatewayOf(tt.node); got != tt.want {
				t.Errorf("gatewayOf = %d, want %d", got, tt.want)
			}
		})
	}
}
