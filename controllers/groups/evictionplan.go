package groups

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
)

// Guard configures which evictions wait for a confirmation: that of deletions (package deletionguard), for Nodes of a group.
type Guard struct {
	// Share is the fraction of a group's Nodes that may leave it at once; 0: any.
	Share float64
	// Minimum is the least number of pods that counts.
	Minimum int
	// After releases the evictions after this time; 0: never.
	After time.Duration
}

// misplacedPod is a pod whose node selector names a group that its Node is not in.
type misplacedPod struct {
	key  types.NamespacedName
	uid  types.UID
	node string
}

// misplaced is what is wrong in one group.
type misplaced struct {
	pods []misplacedPod
	// nodes are those of the pods, by name.
	nodes []string
	// members is the number of Nodes in the group.
	members int
	// deleted: the group is being deleted.
	deleted bool
	// confirmed is the value of names.AnnotationConfirmEvictions.
	confirmed string
}

func newMisplaced(pods []misplacedPod, members int) misplaced {
	m := misplaced{pods: pods, members: members}
	slices.SortFunc(m.pods, func(a, b misplacedPod) int {
		return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.key.String(), b.key.String()))
	})
	for _, p := range m.pods {
		if n := len(m.nodes); n == 0 || m.nodes[n-1] != p.node {
			m.nodes = append(m.nodes, p.node)
		}
	}
	return m
}

// token identifies the Nodes that have left: a confirmation holds for these alone.
func (m misplaced) token() string {
	sum := sha256.New()
	for _, node := range m.nodes {
		sum.Write([]byte(node + "\n"))
	}
	return hex.EncodeToString(sum.Sum(nil))[:10]
}

// mass reports whether a guard holds these evictions until they are confirmed.
func (m misplaced) mass(g Guard) bool {
	return !m.deleted && g.Share > 0 && len(m.pods) >= g.Minimum && float64(len(m.nodes)) > g.Share*float64(len(m.nodes)+m.members) && m.confirmed != m.token()
}

// holdMessage says what is held, and how to go on.
func (m misplaced) holdMessage(group string) string {
	return fmt.Sprintf("%d of %d nodes left the group at once (%s); their %d pods stay until `kubectl annotate --overwrite nodegroup %s %s=%s`, or until the nodes are back",
		len(m.nodes), len(m.nodes)+m.members, listSample(m.nodes, ", "), len(m.pods), group, names.AnnotationConfirmEvictions, m.token())
}

// demandedGroup returns the group that a pod's node selector names, if the pod is to be evicted from a Node outside of it: not a pod that has
// ended or is ending, nor one that the node or a DaemonSet would create again.
func demandedGroup(pod *corev1.Pod, mirror bool) (group string, ok bool) {
	group, ok = pod.Spec.NodeSelector[names.LabelNodeGroup]
	if !ok || mirror || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return "", false
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return "", false
	}
	return group, true
}

// currentHold returns the hold that the status of a group has.
func currentHold(o *apps.NodeGroup) hold {
	c := meta.FindStatusCondition(o.Status.Conditions, names.ConditionEvictionsHeld)
	if c == nil || c.Status != metav1.ConditionTrue {
		return hold{}
	}
	return hold{c.Reason, c.Message}
}
