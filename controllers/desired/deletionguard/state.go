package deletionguard

import (
	"slices"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// Policy is by what all nodes are guarded.
type Policy struct {
	Guard   Guard
	Restore Restore
	// VerifiedSince reports whether the continuity of the Kubernetes history was verified after a moment; nil disables the
	// check. It must not block.
	VerifiedSince func(after time.Time) bool
}

// Input is what a node would lose now.
type Input struct {
	Now time.Time
	// Deleted: the Node object was deleted on purpose; nobody is left to ask for a confirmation.
	Deleted bool
	// Pods are the records of the node's own pods, without those that are removed on purpose whatever the guard says.
	Pods map[wire.Key]published.Record
	// Alive reports whether the node is to keep a pod: it exists, belongs to the node and was not deleted by force.
	Alive func(wire.Key) bool
	// Hold and ConfirmedToken are what the Node's annotations say.
	Hold           wire.Hold
	ConfirmedToken string
}

// Verdict is the decision about a tombstone: wait for the hold to end (Held), evaluate again after RetryAfter, or publish it.
type Verdict struct {
	Held       bool
	RetryAfter time.Duration
	// Changed: Hold is to be reported, nil for none.
	Changed bool
	Hold    *wire.Hold
	// Release: all objects of the node are to be compared again, as a hold has ended.
	Release bool
	// EvaluateAfter, if positive, is when the hold ends by itself.
	EvaluateAfter time.Duration
}

// State is the guard's memory of one node. All of it can be rebuilt from Kubernetes and the stream. The zero State is
// empty. Its methods may be called concurrently.
type State struct {
	mu sync.Mutex
	// Guarded by mu.

	// reported: the present hold, or nil for none, was reported.
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

// Reset empties the state, without a report.
func (s *State) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported, s.hold, s.deferred, s.lastToken, s.changedAt, s.confirmed = false, nil, nil, "", time.Time{}, nil
}

// Held reports whether there is a hold.
func (s *State) Held() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hold != nil
}

// Deferred returns how many objects wait for the hold to end.
func (s *State) Deferred() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.deferred)
}

// Defer records that an object's tombstone waits for the hold to end.
func (s *State) Defer(key wire.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deferred == nil {
		s.deferred = map[wire.Key]struct{}{}
	}
	s.deferred[key] = struct{}{}
}

// DeletionReason returns the reason that the message removing an object from the node carries.
func (s *State) DeletionReason(held published.Record) wire.DeletionReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	if token, ok := s.confirmed[held.UID]; ok {
		return wire.DeletionConfirmed(token)
	}
	return held.DeletionReason
}

// Evaluate evaluates all that a node would lose now. The caller carries out what the verdict asks for before the next call.
func (s *State) Evaluate(p Policy, in Input) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.Deleted {
		return s.clear()
	}
	l := s.countLosses(p, in)
	if len(l.missing) == 0 {
		s.lastToken = ""
		return s.clear()
	}
	token := holdToken(l.missing)
	if token != s.lastToken {
		s.lastToken, s.changedAt = token, in.Now
	}
	unbroken := p.VerifiedSince == nil || p.VerifiedSince(s.changedAt)
	if left := p.Guard.Settle - in.Now.Sub(s.changedAt); left > 0 {
		return Verdict{RetryAfter: left}
	}
	reason := p.Guard.holdReason(l)
	switch {
	case reason == "" && !unbroken: // the Kubernetes history may have been replaced, and the pods may not be gone
		return Verdict{RetryAfter: verifyRetry}
	case reason == "":
		return s.clear()
	}
	if confirmsRemoval(in, l.missing) {
		return s.confirm(in.ConfirmedToken, l.missing)
	}
	var v Verdict
	if expiry, ok := p.holdExpiry(in.Hold, token); ok {
		if !in.Now.Before(expiry) {
			return s.confirm(token, l.missing)
		}
		v.EvaluateAfter = expiry.Sub(in.Now)
	}
	v.Held = true
	hold := wire.Hold{Token: token, Reason: reason, Missing: len(l.missing), Pods: l.live, MissingSample: sampleNames(l.missing)}
	if s.hold != nil && s.hold.Token == hold.Token && s.hold.Pods == hold.Pods {
		return v
	}
	s.hold, s.reported = &hold, true
	v.Changed, v.Hold = true, &hold
	if reason == wire.HoldRestored {
		end := max(time.Until(p.Restore.EndsAt()), time.Millisecond)
		if v.EvaluateAfter <= 0 || end < v.EvaluateAfter {
			v.EvaluateAfter = end
		}
	}
	return v
}

// holdExpiry returns when a hold is released without confirmation; false: never.
func (p Policy) holdExpiry(hold wire.Hold, token string) (time.Time, bool) {
	if p.Guard.After == 0 || hold.Token != token || hold.Since.IsZero() {
		return time.Time{}, false
	}
	return hold.Since.Add(p.Guard.After), true
}

// countLosses counts the pods that a node would lose. The caller holds mu.
func (s *State) countLosses(p Policy, in Input) podLosses {
	var l podLosses
	restored := in.Now.Before(p.Restore.EndsAt())
	for key, r := range in.Pods {
		_, confirmed := s.confirmed[r.UID]
		switch {
		case r.Deleted && r.DeletionReason == "" && in.Now.Sub(r.MadeAt) < guardWindow:
			l.recent++
			continue
		case r.Deleted:
			continue
		}
		l.live++
		switch {
		case confirmed, r.DeletionReason.IsFinal(), in.Alive(key):
		case r.ForeignEpoch && restored:
			l.missing = append(l.missing, lostPod{key: key, uid: r.UID, foreignEpoch: true})
		case r.ForeignEpoch && !p.Restore.Since.IsZero(): // the keep time of the restore has ended
		case r.DeletionReason == "" && (p.Guard.Share > 0 || p.VerifiedSince != nil):
			l.missing = append(l.missing, lostPod{key: key, uid: r.UID})
		}
	}
	return l
}

// confirmsRemoval reports whether the confirmation token allows the removal of exactly the missing pods, or of the rest of
// those that it allowed before.
func confirmsRemoval(in Input, missing []lostPod) bool {
	if in.ConfirmedToken == "" {
		return false
	}
	all := slices.Clone(missing) // until the first one is removed, the token covers exactly these
	for key, r := range in.Pods {
		if r.DeletionReason.ConfirmationToken() == in.ConfirmedToken {
			all = append(all, lostPod{key: key, uid: r.UID})
		}
	}
	return holdToken(all) == in.ConfirmedToken
}

// confirm allows the removal of the missing pods. The caller holds mu.
func (s *State) confirm(token string, missing []lostPod) Verdict {
	if s.confirmed == nil {
		s.confirmed = map[string]string{}
	}
	for _, p := range missing {
		s.confirmed[p.uid] = token
	}
	return s.clear()
}

// clear ends the hold. The caller holds mu.
func (s *State) clear() Verdict {
	if s.hold == nil && s.reported {
		return Verdict{}
	}
	v := Verdict{Changed: true, Release: s.hold != nil}
	s.hold, s.deferred, s.reported = nil, nil, true
	return v
}
