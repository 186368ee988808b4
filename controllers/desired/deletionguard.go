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
	// historyRetry is how soon Config.Unbroken is asked again; a look takes two requests to the apiserver.
	historyRetry = 200 * time.Millisecond
	// someNames is how many names a hold tells.
	someNames = 5
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

// until is when the time of a restore is over.
func (r Restore) until() time.Time {
	if r.Since.IsZero() {
		return time.Time{}
	}
	return r.Since.Add(r.KeepFor)
}

// lost is a pod that the stream holds alive for a node, that the node should have no more, and that never said it would go.
type lost struct {
	key wire.Key
	uid string
	// foreign: it was published of another Kubernetes history than the present one.
	foreign bool
}

// losses is all that the guard judges of a node.
type losses struct {
	missing []lost
	// recent is the number of pods that went without a word within the guardWindow, and live of those in the stream, the
	// missing among them.
	recent, live int
}

// reason tells why the losses are not to be believed, "" if they are.
func (g Guard) reason(l losses) wire.HoldReason {
	if slices.ContainsFunc(l.missing, func(p lost) bool { return p.foreign }) {
		return wire.HoldRestored
	}
	now := len(l.missing) + l.recent
	if g.Share > 0 && len(l.missing) > 0 && now >= g.Minimum && float64(now) > g.Share*float64(l.live+l.recent) {
		return wire.HoldMassDelete
	}
	return ""
}

// token names a set of pods.
func token(pods []lost) string {
	lines := make([]string, 0, len(pods))
	for _, p := range pods {
		lines = append(lines, p.key.String()+" "+p.uid)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return hex.EncodeToString(sum[:5]) // short enough to be typed; it tells holds of one node apart, no more
}

// some names the first of the pods.
func some(pods []lost) []string {
	var names []string
	for _, p := range pods {
		names = append(names, p.key.Namespace+"/"+p.key.Name)
	}
	slices.Sort(names)
	return names[:min(len(names), someNames)]
}

// guarded is the guard's memory of one node. All of it can be found again from Kubernetes and the stream.
type guarded struct {
	// told: the outside knows whether something is held.
	told bool
	hold *wire.Hold
	// back are the objects whose tombstones wait for hold.
	back map[wire.Key]struct{}
	// seen is the token of the missing pods at the last look, and grown is when it last changed.
	seen  string
	grown time.Time
	// confirmed are the pods, by UID, that may go, and the word that said so.
	confirmed map[string]string
}

// verdict is what to do about a tombstone: wait for hold, look again later, or let it go.
type verdict struct {
	held  bool
	later time.Duration
}

// judge looks at all that a node would lose now.
func (e *Engine) judge(s *site, now time.Time) verdict {
	e.mu.Lock()
	defer e.mu.Unlock()
	exists := e.exists(wire.Key{Resource: "nodes", Name: s.name})
	hold, word := e.annotated(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.gone(s) && !exists { // taken away on purpose: nobody is left to be asked
		e.lift(s)
		return verdict{}
	}
	l := e.losses(s, now)
	if len(l.missing) == 0 {
		s.guard.seen = ""
		e.lift(s)
		return verdict{}
	}
	is := token(l.missing)
	if is != s.guard.seen {
		s.guard.seen, s.guard.grown = is, now
	}
	unbroken := e.cfg.Unbroken == nil || e.cfg.Unbroken(s.guard.grown)
	if left := e.cfg.Guard.Settle - now.Sub(s.guard.grown); left > 0 {
		return verdict{later: left}
	}
	reason := e.cfg.Guard.reason(l)
	switch {
	case reason == "" && !unbroken: // perhaps it is the history that is gone, not the pods
		return verdict{later: historyRetry}
	case reason == "":
		e.lift(s)
		return verdict{}
	}
	if s.confirms(word, l.missing) {
		return e.release(s, word, l.missing)
	}
	if at, ok := e.expires(hold, is); ok {
		if !now.Before(at) {
			return e.release(s, is, l.missing)
		}
		e.queue.AddAfter(item{node: s.name}, at.Sub(now))
	}
	e.hold(s, wire.Hold{Token: is, Reason: reason, Missing: len(l.missing), Pods: l.live, Some: some(l.missing)})
	return verdict{held: true}
}

// expires is when a hold is let go by itself.
func (e *Engine) expires(hold wire.Hold, token string) (time.Time, bool) {
	if e.cfg.Guard.After == 0 || hold.Token != token || hold.Since.IsZero() {
		return time.Time{}, false
	}
	return hold.Since.Add(e.cfg.Guard.After), true
}

// losses counts. The caller holds e.mu and s.mu.
func (e *Engine) losses(s *site, now time.Time) losses {
	var l losses
	gone, restored := e.gone(s), now.Before(e.cfg.Restore.until())
	for key := range s.pods {
		if e.cfg.Protected.Covers(key) {
			continue // taken back on purpose
		}
		r := s.held[key]
		_, confirmed := s.guard.confirmed[r.uid]
		switch {
		case r.deleted && r.leaving == "" && now.Sub(r.at) < guardWindow:
			l.recent++
			continue
		case r.deleted:
			continue
		}
		l.live++
		switch {
		case confirmed, r.leaving.Final(), !gone && e.needs(s, key) && e.stays(key):
		case r.foreign && restored:
			l.missing = append(l.missing, lost{key: key, uid: r.uid, foreign: true})
		case r.foreign && !e.cfg.Restore.Since.IsZero(): // its time is over
		case r.leaving == "" && (e.cfg.Guard.Share > 0 || e.cfg.Unbroken != nil):
			l.missing = append(l.missing, lost{key: key, uid: r.uid})
		}
	}
	return l
}

// stays reports whether a pod is there and nobody has taken it away by force.
func (e *Engine) stays(key wire.Key) bool {
	o, err := e.read(key)
	pod, ok := o.(*corev1.Pod)
	return err == nil && ok && !forced(pod)
}

// needs reports whether a node needs an object by the graph. The caller holds e.mu.
func (e *Engine) needs(s *site, key wire.Key) bool {
	v := e.graph.vertices[key]
	if v == nil {
		return false
	}
	_, ok := s.wants[v]
	return ok
}

// annotated reads what stands on the Node about deletions.
func (e *Engine) annotated(s *site) (hold wire.Hold, confirmed string) {
	o, err := e.read(wire.Key{Resource: "nodes", Name: s.name})
	if err != nil {
		return wire.Hold{}, ""
	}
	return wire.HoldOf(o.GetAnnotations())
}

// confirms reports whether a word allows exactly the missing pods to go, or the rest of those that it allowed before. The
// caller holds mu.
func (s *site) confirms(word string, missing []lost) bool {
	if word == "" {
		return false
	}
	all := slices.Clone(missing) // before the first has gone, they alone
	for key := range s.pods {
		if r := s.held[key]; r.leaving.Confirmation() == word {
			all = append(all, lost{key: key, uid: r.uid})
		}
	}
	return token(all) == word
}

// release lets the missing pods go. The caller holds e.mu and s.mu.
func (e *Engine) release(s *site, word string, missing []lost) verdict {
	if s.guard.confirmed == nil {
		s.guard.confirmed = map[string]string{}
	}
	for _, p := range missing {
		s.guard.confirmed[p.uid] = word
	}
	e.lift(s)
	return verdict{}
}

// hold notes and tells what is held. The caller holds e.mu and s.mu.
func (e *Engine) hold(s *site, h wire.Hold) {
	if s.guard.hold != nil && s.guard.hold.Token == h.Token && s.guard.hold.Pods == h.Pods {
		return
	}
	s.guard.hold, s.guard.told = &h, true
	if until := e.cfg.Restore.until(); h.Reason == wire.HoldRestored {
		e.queue.AddAfter(item{node: s.name}, time.Until(until))
	}
	if e.cfg.OnHold != nil {
		e.cfg.OnHold(s.name, &h)
	}
}

// lift ends what is held and asks for what waited. The caller holds e.mu and s.mu.
func (e *Engine) lift(s *site) {
	if s.guard.hold == nil && s.guard.told {
		return
	}
	if s.guard.hold != nil {
		e.add(item{node: s.name})
	}
	s.guard.hold, s.guard.back, s.guard.told = nil, nil, true
	if e.cfg.OnHold != nil {
		e.cfg.OnHold(s.name, nil)
	}
}

// review looks again at a hold after something of the node has changed.
func (e *Engine) review(s *site, key wire.Key) {
	if key.Group != "" || key.Resource != "pods" && key.Resource != "nodes" {
		return
	}
	s.mu.Lock()
	held := s.guard.hold != nil
	s.mu.Unlock()
	if held {
		e.judge(s, time.Now())
	}
}

// may reports whether an object may be taken from the node now. One that may not is asked for again when it may.
func (e *Engine) may(s *site, key wire.Key, held record) bool {
	if isPod(key) && held.leaving.Final() || e.cfg.Protected.Covers(key) {
		return true
	}
	v := e.judge(s, time.Now())
	if v.later > 0 {
		e.queue.AddAfter(item{node: s.name, key: key}, v.later)
		return false
	}
	if v.held {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.guard.back == nil {
			s.guard.back = map[wire.Key]struct{}{}
		}
		s.guard.back[key] = struct{}{}
	}
	return !v.held
}

// partingWord is what the message that takes an object from the node says about why.
func (s *site) partingWord(held record) wire.Leaving {
	s.mu.Lock()
	defer s.mu.Unlock()
	if word, ok := s.guard.confirmed[held.uid]; ok {
		return wire.Confirmed(word)
	}
	return held.leaving
}

func isPod(key wire.Key) bool { return key.Group == "" && key.Resource == "pods" }

// isOwnPod tells the pods that run at the node from those that somebody there only looks at.
func (r record) isOwnPod(key wire.Key) bool { return isPod(key) && r.leaving != wire.Copy }

// mirrorAnnotation is on the API's copy of a static pod; the kubelet makes and removes it at once.
const mirrorAnnotation = "kubernetes.io/config.mirror"

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[mirrorAnnotation]
	return ok
}

// forced reports whether a pod is on its way out without any time to end: by force, or as the last step of an orderly end.
// Between that and its disappearance the API shows it for a moment, or for as long as it has finalizers; a node that sees it
// so kills it.
func forced(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// leaving says why a pod's removal would be no surprise.
func leaving(pod *corev1.Pod) wire.Leaving {
	mirror := isMirror(pod)
	grace := pod.Spec.TerminationGracePeriodSeconds
	switch {
	case pod.DeletionTimestamp != nil && !forced(pod):
		return wire.Terminating
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return wire.Ended
	case mirror || grace != nil && *grace == 0:
		return wire.AtOnce
	}
	return ""
}

func (e *Engine) countHeldNodes() float64 {
	return e.sum(func(s *site) int {
		if s.guard.hold == nil {
			return 0
		}
		return 1
	})
}

func (e *Engine) countHeld() float64 { return e.sum(func(s *site) int { return len(s.guard.back) }) }

// sum adds up what of returns for each site, called with its mu held.
func (e *Engine) sum(of func(*site) int) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, s := range e.sites {
		s.mu.Lock()
		n += of(s)
		s.mu.Unlock()
	}
	return float64(n)
}
