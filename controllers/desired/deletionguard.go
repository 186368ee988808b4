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
)

// Guard says when deletions are held back. The zero Guard holds back nothing.
type Guard struct {
	// Share of a node's pods, 0 to 1; if more go at once without having been terminated, they are kept. 0: off.
	Share float64
	// Minimum is the least number of pods that is ever taken for a mass delete.
	Minimum int
	// After lets held deletions go by itself; 0: never.
	After time.Duration
	// Settle is how long the number of missing pods must not have grown before it is judged, so that one sweep is seen as
	// one; 0: 2 s. Removals without termination, and what they leave behind, are delayed by it.
	Settle time.Duration
}

// Restore says that the Kubernetes API went back in time. The zero Restore: it never did.
type Restore struct {
	// Since is when that was noticed.
	Since time.Time
	// KeepFor is how long pods that the API no longer knows are kept at their nodes, unless somebody confirms.
	KeepFor time.Duration
}

const (
	defaultSettle = 2 * time.Second
	// guardWindow is how long a pod that went without a word counts with those that go now.
	guardWindow = time.Minute
	// verifyRetry is how soon Config.VerifiedSince is asked again; a look takes two requests to the apiserver.
	verifyRetry = 200 * time.Millisecond
	// maxSampleNames is how many names a hold tells.
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

// endsAt is when the time of a restore is over.
func (r Restore) endsAt() time.Time {
	if r.Since.IsZero() {
		return time.Time{}
	}
	return r.Since.Add(r.KeepFor)
}

// lostPod is a pod that the stream holds alive for a node, that the node should have no more, and that never said it would go.
type lostPod struct {
	key wire.Key
	uid string
	// foreign: it was published of another Kubernetes history than the present one.
	foreignEpoch bool
}

// podLosses is all that the guard judges of a node.
type podLosses struct {
	missing []lostPod
	// recent is the number of pods that went without a word within the guardWindow, and live of those in the stream, the
	// missing among them.
	recent, live int
}

// holdReason tells why the losses are not to be believed, "" if they are.
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

// holdToken names a set of pods.
func holdToken(pods []lostPod) string {
	lines := make([]string, 0, len(pods))
	for _, p := range pods {
		lines = append(lines, p.key.String()+" "+p.uid)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:5]) // short enough to be typed; it tells holds of one node apart, no more
}

// sampleNames names the first of the pods.
func sampleNames(pods []lostPod) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.key.Namespace+"/"+p.key.Name)
	}
	slices.Sort(names)
	return names[:min(len(names), maxSampleNames)]
}

// guardState is the guard's memory of one node. All of it can be found again from Kubernetes and the stream.
type guardState struct {
	// told: the outside knows whether something is held.
	reported bool
	hold     *wire.Hold
	// deferred are the objects whose tombstones wait for hold.
	deferred map[wire.Key]struct{}
	// lastToken is the token of the missing pods at the last look, and grown is when it last changed.
	lastToken string
	changedAt time.Time
	// confirmed are the pods, by UID, that may go, and the word that said so.
	confirmed map[string]string
}

// guardVerdict is what to do about a tombstone: wait for hold, look again later, or let it go.
type guardVerdict struct {
	held       bool
	retryAfter time.Duration
}

// evaluateGuard looks at all that a node would lose now.
func (e *Engine) evaluateGuard(s *nodeState, now time.Time) guardVerdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	exists := e.isCached(wire.Key{Resource: "nodes", Name: s.name})
	hold, word := e.holdAnnotations(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.nodeGone(s) && !exists { // taken away on purpose: nobody is left to be asked
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
	case reason == "" && !unbroken: // perhaps it is the history that is gone, not the pods
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

// holdExpiry is when a hold is let go by itself.
func (e *Engine) holdExpiry(hold wire.Hold, token string) (time.Time, bool) {
	if e.cfg.Guard.After == 0 || hold.Token != token || hold.Since.IsZero() {
		return time.Time{}, false
	}
	return hold.Since.Add(e.cfg.Guard.After), true
}

// countLosses counts. The caller holds e.mu and s.mu.
func (e *Engine) countLosses(s *nodeState, now time.Time) podLosses {
	var l podLosses
	gone, restored := e.nodeGone(s), now.Before(e.cfg.Restore.endsAt())
	for key := range s.ownPods {
		if e.cfg.Protected.Covers(key) {
			continue // taken back on purpose
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
		case r.foreignEpoch && !e.cfg.Restore.Since.IsZero(): // its time is over
		case r.deletionReason == "" && (e.cfg.Guard.Share > 0 || e.cfg.VerifiedSince != nil):
			l.missing = append(l.missing, lostPod{key: key, uid: r.uid})
		}
	}
	return l
}

// podAlive reports whether a pod is there and nobody has taken it away by force.
func (e *Engine) podAlive(key wire.Key) bool {
	o, err := e.readCached(key)
	pod, ok := o.(*corev1.Pod)
	return err == nil && ok && !forceDeleted(pod)
}

// nodeNeeds reports whether a node needs an object by the graph. The caller holds e.mu.
func (e *Engine) nodeNeeds(s *nodeState, key wire.Key) bool {
	v := e.graph.vertices[key]
	if v == nil {
		return false
	}
	_, ok := s.wants[v]
	return ok
}

// holdAnnotations reads what stands on the Node about deletions.
func (e *Engine) holdAnnotations(s *nodeState) (hold wire.Hold, confirmed string) {
	o, err := e.readCached(wire.Key{Resource: "nodes", Name: s.name})
	if err != nil {
		return wire.Hold{}, ""
	}
	return wire.ParseHold(o.GetAnnotations())
}

// confirmsRemoval reports whether a word allows exactly the missing pods to go, or the rest of those that it allowed before. The
// caller holds mu.
func (s *nodeState) confirmsRemoval(word string, missing []lostPod) bool {
	if word == "" {
		return false
	}
	all := slices.Clone(missing) // before the first has gone, they alone
	for key := range s.ownPods {
		if r := s.published[key]; r.deletionReason.ConfirmationToken() == word {
			all = append(all, lostPod{key: key, uid: r.uid})
		}
	}
	return holdToken(all) == word
}

// confirmLosses lets the missing pods go. The caller holds e.mu and s.mu.
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

// setHold notes and tells what is held. The caller holds e.mu and s.mu.
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

// clearHold ends what is held and asks for what waited. The caller holds e.mu and s.mu.
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

// reevaluateHold looks again at a hold after something of the node has changed.
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

// deletionAllowed reports whether an object may be taken from the node now. One that may not is asked for again when it may.
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

// deletionReason is what the message that takes an object from the node says about why.
func (s *nodeState) deletionReason(held streamRecord) wire.DeletionReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	if word, ok := s.guard.confirmed[held.uid]; ok {
		return wire.DeletionConfirmed(word)
	}
	return held.deletionReason
}

func isPod(key wire.Key) bool { return key.Group == "" && key.Resource == "pods" }

// isOwnPod tells the pods that run at the node from those that somebody there only looks at.
func (r streamRecord) isOwnPod(key wire.Key) bool {
	return isPod(key) && r.deletionReason != wire.DeletionOfCopy
}

// mirrorAnnotation is on the API's copy of a static pod; the kubelet makes and removes it at once.
const mirrorAnnotation = "kubernetes.io/config.mirror"

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[mirrorAnnotation]
	return ok
}

// forceDeleted reports whether a pod is on its way out without any time to end: by force, or as the last step of an orderly end.
// Between that and its disappearance the API shows it for a moment, or for as long as it has finalizers; a node that sees it
// so kills it.
func forceDeleted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// podDeletionReason says why a pod's removal would be no surprise.
func podDeletionReason(pod *corev1.Pod) wire.DeletionReason {
	mirror := isMirror(pod)
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

// sumNodes adds up what of returns for each site, called with its mu held.
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
