// Package podstatus compares the statuses of a pod at its gateway and in Kubernetes without sending them.
package podstatus

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// digestBytes is how much of a SHA-256 a digest keeps. A gateway has no use for a collision: it would only withhold its own report.
const digestBytes = 16

// Digest returns a digest of what a report of a status could change. If two statuses have the same digest, then a report of one over the
// other writes nothing. The reverse does not hold: two programs that know different fields of a status make different digests.
func Digest(status corev1.PodStatus) (string, error) {
	// A report never writes these: the cloud keeps its own values.
	status.NominatedNodeName = ""
	status.ResourceClaimStatuses, status.ExtendedResourceClaimStatus, status.NodeAllocatableResourceClaimStatuses = nil, nil, nil
	// A patch merges conditions by type, so their order is not a change.
	status.Conditions = slices.Clone(status.Conditions)
	slices.SortStableFunc(status.Conditions, func(a, b corev1.PodCondition) int { return cmp.Compare(a.Type, b.Type) })
	data, err := json.Marshal(status)
	if err != nil {
		return "", fmt.Errorf("encode a status: %w", err)
	}
	sum := sha256.Sum256(data)
	return base64.RawURLEncoding.EncodeToString(sum[:digestBytes]), nil
}
