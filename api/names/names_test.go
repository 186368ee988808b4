package names_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
)

// A gateway's old copy of a condition that the cloud writes must not come back; those of the agent and the kubelet must be taken.
func TestCloudWrites(t *testing.T) {
	for condition, want := range map[corev1.NodeConditionType]bool{
		names.ConditionConnected: true, names.ConditionUpToDate: true, names.ConditionDeletionsHeld: true, names.ConditionVersionSupported: true,
		names.ConditionStorage: false, names.ConditionIdentity: false, corev1.NodeReady: false,
	} {
		if got := names.CloudWrites(condition); got != want {
			t.Errorf("%s: %t, want %t", condition, got, want)
		}
	}
}
