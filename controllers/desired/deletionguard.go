package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
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
	defaultSettle = 2 * time.Second
	// guardWindow is how long a pod that vanished without termination counts together with those that vanish now.
	guardWindow = time.Minute
	// verifyRetry is the delay before Config.VerifiedSince is called again; one verification takes two requests to the apiserver.
	verifyRetry = 200 * time.Millisecond
	// maxSampleNames is how many pod names a hold lists.
	maxSampleNames = 5
)

func (g Guard) validate() error {
	var faults []error
	if g.Share < 0 || g.Share > 1 {
		faults = append(faults, errors.New("guard: share is not within 0 and 1"))
	}
	if g.Minimum < 0 || g.After < 0 || g.Settle < 0 {
		faults = append(faults, errors.New("guard: minimum, after or settle is negative"))
	}
	return errors.Join(faults...)
}

// endsAt returns when the keep time of a restore ends.
func (r Restore) endsAt() time.Time {
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

// guardState is the guard's memory of one node. All of it can be rebuilt from Kubernetes and the stream.
type guardState struct {
	// reported: Config.OnHold was called with the present hold, or with nil for none.
	reported bool
	hold     *wire.Hold
	// deferred are the objects whose tombstones wait for hold to end.
	deferred map[wire.Key]struct{}
	// lastToken is the token of the missing pods at the last evaluation; changedAt is when it last changed.
	lastToken string
	changedAt time.Time
	// confirmed maps the UID of each pod that may be removed to the token that confirmed it.
	confirmed map[string]string
}

// guardVerdict is the decision about a tombstone: wait for the hold to end, evaluate again after retryAfter, or publish it.
type guardVerdict struct {
	held       bool
	retryAfter time.Duration
}

// evaluateGuard evaluates all that a node would lose now.
func (e *Engine) evaluateGuard(s *nodeState, now time.Time) guardVerdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	exists := e.isCached(wire.Key{Resource: "nodes", Name: s.name})
	hold, word := e.holdAnnotations(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.nodeGone(s) && !exists { // deleted on purpose: no Node is left to ask a confirmation on
		e.clearHold(s)
		return guardVerdict{}
	}
	l := e.countLosses(s, now)
	if len(l.missing) == 0 {
		s.guard.lastToken = ""
		e.clearHold(s)
		return guardVerdict{}
	}
	is := holdToken(l.missing)
	if is != s.guard.lastToken {
		s.guard.lastToken, s.guard.changedAt = is, now
	}
	unbroken := e.cfg.VerifiedSince == nil || e.cfg.VerifiedSince(s.guard.changedAt)
	if left := e.cfg.Guard.Settle - now.Sub(s.guard.changedAt); left > 0 {
		return guardVerdict{retryAfter: left}
	}
	reason := e.cfg.Guard.holdReason(l)
	switch {
	case reason == "" && !unbroken: // the Kubernetes history may have been replaced, and the pods may not be gone
		return guardVerdict{retryAfter: verifyRetry}
	case reason == "":
		e.clearHold(s)
		return guardVerdict{}
	}
	if s.confirmsRemoval(word, l.missing) {
		return e.confirmLosses(s, word, l.missing)
	}
	if at, ok := e.holdExpiry(hold, is); ok {
		if !now.Before(at) {
			return e.confirmLosses(s, is, l.missing)
		}
		e.queue.AddAfter(workItem{node: s.name}, at.Sub(now))
	}
	e.setHold(s, wire.Hold{Token: is, Reason: reason, Missing: len(l.missing), Pods: l.live, MissingSample: sampleNames(l.missing)})
	return guardVerdict{held: true}
}

// holdExpiry returns when a hold is released without confirmation; false: never.
func (e *Engine) holdExpiry(hold wire.Hold, token string) (time.Time, bool) {
	if e.cfg.Guard.After == 0 || hold.Token != token || hold.Since.IsZero() {
		return time.Time{}, false
	}
	return hold.Since.Add(e.cfg.Guard.After), true
}

// countLosses counts the pods that a node would lose. The caller holds e.mu and s.mu.
func (e *Engine) countLosses(s *nodeState, now time.Time) podLosses {
	var l podLosses
	gone, restored := e.nodeGone(s), now.Before(e.cfg.Restore.endsAt())
	for key := range s.ownPods {
		if e.cfg.Protected.Covers(key) {
			continue // removed on purpose
		}
		r := s.published[key]
		_, confirmed := s.guard.confirmed[r.uid]
		switch {
		case r.deleted && r.deletionReason == "" && now.Sub(r.madeAt) < guardWindow:
			l.recent++
			continue
		case r.deleted:
			continue
		}
		l.live++
		switch {
		case confirmed, r.deletionReason.IsFinal(), !gone && e.nodeNeeds(s, key) && e.podAlive(key):
		case r.foreignEpoch && restored:
			l.missing = append(l.missing, lostPod{key: key, uid: r.uid, foreignEpoch: true})
		case r.foreignEpoch && !e.cfg.Restore.Since.IsZero(): // the keep time of the restore has ended
		case r.deletionReason == "" && (e.cfg.Guard.Share > 0 || e.cfg.VerifiedSince != nil):
			l.missing = append(l.missing, lostPod{key: key, uid: r.uid})
		}
	}
	return l
}

// podAlive reports whether a pod exists and was not force-deleted.
func (e *Engine) podAlive(key wire.Key) bool {
	o, err := e.readCached(key)
	pod, ok := o.(*corev1.Pod)
	return err == nil && ok && !forceDeleted(pod)
}

// nodeNeeds reports whether a node needs an object according to the graph. The caller holds e.mu.
func (e *Engine) nodeNeeds(s *nodeState, key wire.Key) bool {
	v := e.graph.vertices[key]
	if v == nil {
		return false
	}
	_, ok := s.wants[v]
	return ok
}

// holdAnnotations reads the hold and the confirmation token from the Node's annotations.
func (e *Engine) holdAnnotations(s *nodeState) (hold wire.Hold, confirmed string) {
	o, err := e.readCached(wire.Key{Resource: "nodes", Name: s.name})
	if err != nil {
		return wire.Hold{}, ""
	}
	return wire.ParseHold(o.GetAnnotations())
}

// confirmsRemoval reports whether a confirmation token (word) allows the removal of exactly the missing pods, or of the
// rest of those that it allowed before. The caller holds mu.
func (s *nodeState) confirmsRemoval(word string, missing []lostPod) bool {
	if word == "" {
		return false
	}
	all := slices.Clone(missing) // until the first one is removed, the token covers exactly these
	for key := range s.ownPods {
		if r := s.published[key]; r.deletionReason.ConfirmationToken() == word {
			all = append(all, lostPod{key: key, uid: r.uid})
		}
	}
	return holdToken(all) == word
}

// confirmLosses allows the removal of the missing pods. The caller holds e.mu and s.mu.
func (e *Engine) confirmLosses(s *nodeState, word string, missing []lostPod) guardVerdict {
	if s.guard.confirmed == nil {
		s.guard.confirmed = map[string]string{}
	}
	for _, p := range missing {
		s.guard.confirmed[p.uid] = word
	}
	e.clearHold(s)
	return guardVerdict{}
}

// setHold records and reports the hold. The caller holds e.mu and s.mu.
func (e *Engine) setHold(s *nodeState, h wire.Hold) {
	if s.guard.hold != nil && s.guard.hold.Token == h.Token && s.guard.hold.Pods == h.Pods {
		return
	}
	s.guard.hold, s.guard.reported = &h, true
	if until := e.cfg.Restore.endsAt(); h.Reason == wire.HoldRestored {
		e.queue.AddAfter(workItem{node: s.name}, time.Until(until))
	}
	if e.cfg.OnHold != nil {
		e.cfg.OnHold(s.name, &h)
	}
}

// clearHold ends the hold and enqueues the deferred deletions. The caller holds e.mu and s.mu.
func (e *Engine) clearHold(s *nodeState) {
	if s.guard.hold == nil && s.guard.reported {
		return
	}
	if s.guard.hold != nil {
		e.addItem(workItem{node: s.name})
	}
	s.guard.hold, s.guard.deferred, s.guard.reported = nil, nil, true
	if e.cfg.OnHold != nil {
		e.cfg.OnHold(s.name, nil)
	}
}

// reevaluateHold evaluates a hold again after an object of the node has changed.
func (e *Engine) reevaluateHold(s *nodeState, key wire.Key) {
	if key.Group != "" || key.Resource != "pods" && key.Resource != "nodes" {
		return
	}
	s.mu.Lock()
	held := s.guard.hold != nil
	s.mu.Unlock()
	if held {
		e.evaluateGuard(s, time.Now())
	}
}

// deletionAllowed reports whether an object may be removed from the node now. If not, it is enqueued again when it may.
func (e *Engine) deletionAllowed(s *nodeState, key wire.Key, held streamRecord) bool {
	if isPod(key) && held.deletionReason.IsFinal() || e.cfg.Protected.Covers(key) {
		return true
	}
	v := e.evaluateGuard(s, time.Now())
	if v.retryAfter > 0 {
		e.queue.AddAfter(workItem{node: s.name, key: key}, v.retryAfter)
		return false
	}
	if v.held {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.guard.deferred == nil {
			s.guard.deferred = map[wire.Key]struct{}{}
		}
		s.guard.deferred[key] = struct{}{}
	}
	return !v.held
}

// deletionReason returns the reason that the message removing an object from the node carries.
func (s *nodeState) deletionReason(held streamRecord) wire.DeletionReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	if word, ok := s.guard.confirmed[held.uid]; ok {
		return wire.DeletionConfirmed(word)
	}
	return held.deletionReason
}

func isPod(key wire.Key) bool { return key.Group == "" && key.Resource == "pods" }

// isOwnPod reports whether a record is of a pod that runs at the node, not of a copy for a component that only reads it.
func (r streamRecord) isOwnPod(key wire.Key) bool {
	return isPod(key) && r.deletionReason != wire.DeletionOfCopy
}

// forceDeleted reports whether a pod is being deleted with a grace period of zero: by force, or as the last step of an
// orderly termination. The API shows such a pod for a moment before it disappears, or for as long as it has finalizers.
// A node that receives it in this state kills it.
func forceDeleted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// podDeletionReason returns the reason for which a pod's removal is expected, "" if there is none.
func podDeletionReason(pod *corev1.Pod) wire.DeletionReason {
	mirror := references.IsMirror(pod)
	grace := pod.Spec.TerminationGracePeriodSeconds
	switch {
	case pod.DeletionTimestamp != nil && !forceDeleted(pod):
		return wire.DeletionTerminating
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return wire.DeletionPodEnded
	case mirror || grace != nil && *grace == 0:
		return wire.DeletionWithoutGrace
	}
	return ""
}

func (e *Engine) countHeldNodes() float64 {
	return e.sumNodes(func(s *nodeState) int {
		if s.guard.hold == nil {
			return 0
		}
		return 1
	})
}

func (e *Engine) countHeld() float64 {
	return e.sumNodes(func(s *nodeState) int { return len(s.guard.deferred) })
}

// sumNodes adds up the results of a function for each node; it is called with the node's mu held.
func (e *Engine) sumNodes(of func(*nodeState) int) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.nodes {
		s.mu.Lock()
		n += of(s)
		s.mu.Unlock()
	}
	return float64(n)
}
