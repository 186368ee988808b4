package gateway_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/cloud/gateway"
)

func TestNodeOf(t *testing.T) {
	at := metav1.NewTime(time.Unix(1000, 0))
	edge := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u", Labels: map[string]string{"node-role.kubernetes.io/edge": ""}}}
	offline := edge
	offline.Status.Conditions = []corev1.NodeCondition{{Type: "EdgeConnected", Status: corev1.ConditionFalse, LastTransitionTime: at}}
	offline.Status.DaemonEndpoints.KubeletEndpoint.Port = 20100
	plain := corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "b"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, {Type: corev1.NodeInternalIP, Address: "fd00::2"},
	}}}
	for name, tt := range map[string]struct {
		node corev1.Node
		want gateway.Node
	}{
		"an edge node not judged": {edge, gateway.Node{UID: types.UID("u"), Edge: true, KubeletPort: 10250}},
		"an edge node offline":    {offline, gateway.Node{UID: types.UID("u"), Edge: true, Offline: true, Since: at.Time, KubeletPort: 20100}},
		"any other node":          {plain, gateway.Node{KubeletPort: 10250, Address: "10.0.0.2"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := gateway.NodeOf(&tt.node); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}
