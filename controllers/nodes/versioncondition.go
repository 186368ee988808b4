package nodes

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/kubeversion"
)

// wantVersion returns the wanted state of VersionSupported; the zero state while the version is not known.
func wantVersion(server string) (conditionState, string) {
	if server == "" {
		return conditionState{}, ""
	}
	verdict := kubeversion.Evaluate(server)
	status := corev1.ConditionFalse
	if verdict.Tested {
		status = corev1.ConditionTrue
	}
	return conditionState{status, verdict.Reason}, verdict.Message
}
