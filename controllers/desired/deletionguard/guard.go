// Package deletionguard decides which deletions at a node wait until an operator confirms them: mass deletions of pods that
// nothing announced, and of what a restored Kubernetes API no longer knows.
package deletionguard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// Guard configures which deletions are held back. The zero Guard holds back nothing.
type Guard struct {
	// Share is a fraction of a node's pods, 0 to 1. If more than that vanish at once without termination, they are kept. 0: off.
	Share float64
	// Minimum is the lowest number of pods that counts as a mass deletion.
	Minimum int
	// After is the time after which held deletions are released without confirmation; 0: never.
	After time.Duration
	// Settle is how long the set of missing pods must be unchanged before it is evaluated, so that one sweep is seen as
	// one; 0: 2 s. It delays removals without termination, and those of the objects that these pods needed.
	Settle time.Duration
}

// Restore says that the Kubernetes API went back in time. The zero Restore: it did not.
type Restore struct {
	// Since is when the restore was detected.
	Since time.Time
	// KeepFor is how long pods that the API no longer knows are kept at their nodes, unless an operator confirms their removal.
	KeepFor time.Duration
}

const (
	// DefaultSettle is Guard.Settle where it is not set.
	DefaultSettle = 2 * time.Second
	// guardWindow is how long a pod that vanished without termination counts together with those that vanish now.
	guardWindow = time.Minute
	// verifyRetry is the delay before Policy.VerifiedSince is called again; one verification takes two requests to the apiserver.
	verifyRetry = 200 * time.Millisecond
	// maxSampleNames is how many pod names a hold lists.
	maxSampleNames = 5
)

// Validate returns all faults, joined.
func (g Guard) Validate() error {
	var faults []error
	if g.Share < 0 || g.Share > 1 {
		faults = append(faults, errors.New("guard: share is not within 0 and 1"))
	}
	if g.Minimum < 0 || g.After < 0 || g.Settle < 0 {
		faults = append(faults, errors.New("guard: minimum, after or settle is negative"))
	}
	return errors.Join(faults...)
}

// EndsAt returns when the keep time of a restore ends; the zero time without a restore.
func (r Restore) EndsAt() time.Time {
	if r.Since.IsZero() {
		return time.Time{}
	}
	return r.Since.Add(r.KeepFor)
}

// lostPod is a pod that the stream holds alive for a node, that the node should no longer have, and that was never
// marked for termination.
type lostPod struct {
	key wire.Key
	uid string
	// foreignEpoch: the pod was published from another Kubernetes history than the present one.
	foreignEpoch bool
}

// podLosses is the input of the guard's decision for one node.
type podLosses struct {
	missing []lostPod
	// recent is the number of pods that vanished without termination within the guardWindow. live is the number of live
	// pods in the stream, the missing ones included.
	recent, live int
}

// holdReason returns why the losses are suspicious, "" if they are not.
func (g Guard) holdReason(l podLosses) wire.HoldReason {
	if slices.ContainsFunc(l.missing, func(p lostPod) bool { return p.foreignEpoch }) {
		return wire.HoldRestored
	}
	now := len(l.missing) + l.recent
	if g.Share > 0 && len(l.missing) > 0 && now >= g.Minimum && float64(now) > g.Share*float64(l.live+l.recent) {
		return wire.HoldMassDelete
	}
	return ""
}

// holdToken returns the confirmation token of a set of pods.
func holdToken(pods []lostPod) string {
	lines := make([]string, 0, len(pods))
	for _, p := range pods {
		lines = append(lines, p.key.String()+" "+p.uid)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:5]) // short enough to type; it only distinguishes the holds of one node
}

// sampleNames returns the first maxSampleNames names of the pods, sorted.
func sampleNames(pods []lostPod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.key.Namespace+"/"+p.key.Name)
	}
	slices.Sort(names)
	return names[:min(len(names), maxSampleNames)]
}
