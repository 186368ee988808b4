package rollout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/apps"
)

// Group is a group of nodes that the application targets, with what is known of its pods.
type Group struct {
	Name string
	// Revision is the one that the counts below are about; the counts of another one say nothing about a rollout.
	Revision string
	// Wanted is the number of pods that the application asks for in the group, Ready how many of them are ready on nodes with a link, and
	// Offline how many are on nodes without one, ready or not: they count neither for nor against a step. An application without pods counts objects.
	Wanted, Ready, Offline int
	// Held groups must not be given another revision now: their maintenance window is closed.
	Held bool
}

// Request is everything that a decision depends on.
type Request struct {
	// Plan is nil for an application without one: all groups get the newest revision at once.
	Plan *Plan
	// Newest is the revision of the application's present specification.
	Newest string
	// Groups are all targets. Their order does not matter.
	Groups []Group
	// Status is that of the last decision; the zero value before the first.
	Status apps.RolloutStatus
	// Paused holds the rollout where it is.
	Paused bool
	// Approval is the last approval: the result of FormatApproval, or empty.
	Approval string
	Now      time.Time
}

// Decision says which group gets which revision.
type Decision struct {
	// Status must be stored before any group is given the revision that Revisions names: a replica that reads an earlier one would take it back.
	Status apps.RolloutStatus
	// Revisions has the revision of each group. A group without one has never been given any, and gets nothing yet.
	Revisions map[string]string
	// CheckAfter is when time alone changes the decision, 0 for never.
	CheckAfter time.Duration
}

// FormatApproval returns the value of the annotation that approves a step of a revision. With force it also ends a step whose pods are not ready.
func FormatApproval(revision string, step int32, force bool) string {
	text := revision + "/" + strconv.Itoa(int(step))
	if force {
		text += "/force"
	}
	return text
}

// Decide returns the next status of the rollout, at most one step further, and who has which revision with it. It never gives a group an older
// revision than it has, except when the newest revision is the stable one: to go back to what all groups had is safe at once, without steps.
func Decide(r Request) Decision {
	d := decider{Request: r, names: groupNames(r.Groups), next: startStatus(r)}
	switch {
	case r.Plan == nil, d.next.Revision == d.next.StableRevision:
		d.releaseAll()
	case len(r.Groups) == 0:
		d.setPhase(apps.RolloutProgressing, "the application targets no group")
	case r.Paused:
		d.setPhase(apps.RolloutPaused, fmt.Sprintf("step %d of %d: paused", d.next.Step, d.next.Steps))
	default:
		d.step()
	}
	return d.decision()
}

func groupNames(groups []Group) []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// startStatus returns the status to go on from: the last one, or the start of another revision, which leaves groups as they are.
func startStatus(r Request) apps.RolloutStatus {
	s := *r.Status.DeepCopy()
	if s.Revision != r.Newest {
		s = apps.RolloutStatus{Revision: r.Newest, StableRevision: s.StableRevision, Groups: s.Groups}
	}
	if s.Step == 0 {
		s.Step, s.StepStartedAt = 1, metav1.NewTime(r.Now)
	}
	s.Steps = 1
	if r.Plan != nil {
		s.Steps = int32(len(r.Plan.Steps)) + 1 //nolint:gosec // bounded by maxPlanBytes
	}
	s.Step = min(s.Step, s.Steps)
	return s
}

// decider is one decision in progress.
type decider struct {
	Request
	names []string
	next  apps.RolloutStatus
}

func (d *decider) setPhase(phase apps.RolloutPhase, message string) {
	d.next.Phase, d.next.Message = phase, message
}

// releaseAll gives all groups the revision without steps, and completes the rollout when none is held any more.
func (d *decider) releaseAll() {
	in := map[string]bool{}
	for _, name := range d.names {
		in[name] = true
	}
	d.release(in)
	if held := d.count(in).held; len(held) > 0 {
		d.next.Step = d.next.Steps
		d.setPhase(apps.RolloutProgressing, "held by the maintenance window of "+strings.Join(held, ", "))
		return
	}
	d.complete()
}

func (d *decider) complete() {
	d.setPhase(apps.RolloutCompleted, "")
	d.next.StableRevision, d.next.Groups = d.next.Revision, nil
	d.next.Step, d.next.ReadySince = d.next.Steps, metav1.Time{}
}

// step gives the groups of the current step the revision, and goes to the next one if this one has succeeded.
func (d *decider) step() {
	in, unknown := d.Plan.groupsUpTo(int(d.next.Step)-1, d.names)
	if len(unknown) > 0 {
		d.setPhase(apps.RolloutBlocked, fmt.Sprintf("step %d of %d names groups that the application does not target: %s",
			d.next.Step, d.next.Steps, strings.Join(unknown, ", ")))
		return
	}
	d.release(in)
	c := d.count(in)
	switch {
	case d.forced():
		d.advance(in)
	case !c.succeeded(d.Plan.Threshold):
		d.next.ReadySince = metav1.Time{}
		d.setPhase(apps.RolloutProgressing, fmt.Sprintf("step %d of %d: %s", d.next.Step, d.next.Steps, c))
	case !d.soaked():
		d.setPhase(apps.RolloutSoaking, fmt.Sprintf("step %d of %d: %s since %s, for %s",
			d.next.Step, d.next.Steps, c, d.next.ReadySince.UTC().Format(time.RFC3339), d.Plan.Soak))
	case d.Plan.Manual && d.next.Step < d.next.Steps && d.Approval != FormatApproval(d.next.Revision, d.next.Step, false):
		d.setPhase(apps.RolloutAwaitingApproval, fmt.Sprintf("step %d of %d: %s", d.next.Step, d.next.Steps, c))
	default:
		d.advance(in)
	}
}

func (d *decider) forced() bool {
	return d.Approval == FormatApproval(d.next.Revision, d.next.Step, true)
}

// soaked notes since when the step's pods are ready, and reports whether that is long enough. After the last step nothing waits for it.
func (d *decider) soaked() bool {
	if d.next.Step == d.next.Steps {
		return true
	}
	if d.next.ReadySince.IsZero() {
		d.next.ReadySince = metav1.NewTime(d.Now)
	}
	return d.Now.Sub(d.next.ReadySince.Time) >= d.Plan.Soak
}

// advance begins the next step, or completes the rollout if this one had all groups.
func (d *decider) advance(in map[string]bool) {
	if held := d.count(in).held; len(held) > 0 { // forced
		d.setPhase(apps.RolloutProgressing, fmt.Sprintf("step %d of %d: held by the maintenance window of %s", d.next.Step, d.next.Steps, strings.Join(held, ", ")))
		return
	}
	if d.next.Step == d.next.Steps || len(in) == len(d.names) {
		d.complete()
		return
	}
	d.next.Step, d.next.StepStartedAt, d.next.ReadySince = d.next.Step+1, metav1.NewTime(d.Now), metav1.Time{}
	in, unknown := d.Plan.groupsUpTo(int(d.next.Step)-1, d.names)
	if len(unknown) > 0 { // the next decision says so
		in = nil
	}
	d.release(in)
	d.setPhase(apps.RolloutProgressing, fmt.Sprintf("step %d of %d begins", d.next.Step, d.next.Steps))
}

// release gives groups the revision, but for those that are held.
func (d *decider) release(in map[string]bool) {
	for _, g := range d.Groups {
		if !in[g.Name] || g.Held {
			continue
		}
		i := slices.IndexFunc(d.next.Groups, func(o apps.RolloutGroup) bool { return o.Name == g.Name })
		if i < 0 {
			d.next.Groups = append(d.next.Groups, apps.RolloutGroup{Name: g.Name})
			i = len(d.next.Groups) - 1
		}
		d.next.Groups[i].Revision = d.next.Revision
	}
	slices.SortFunc(d.next.Groups, func(a, b apps.RolloutGroup) int { return strings.Compare(a.Name, b.Name) })
}

// counts are the pods of a step.
type counts struct {
	wanted, ready, offline int
	// waiting are groups that do not have the revision yet although nodes of theirs have a link, held those whose window is closed.
	waiting, held []string
}

func (c counts) String() string {
	text := fmt.Sprintf("%d of %d pods on nodes with a link are ready", c.ready, c.wanted-c.offline)
	if c.wanted == c.offline {
		text = "no pod is on a node with a link, so nothing shows yet that the revision works"
	}
	if c.offline > 0 {
		text += fmt.Sprintf(", %d are on nodes without one", c.offline)
	}
	if len(c.waiting) > 0 {
		text += ", no answer yet from " + strings.Join(c.waiting, ", ")
	}
	if len(c.held) > 0 {
		text += ", held by the maintenance window of " + strings.Join(c.held, ", ")
	}
	return text
}

// succeeded reports whether enough pods are ready. Pods on nodes without a link are left out; if there are no others, nothing has shown yet
// that the revision works.
func (c counts) succeeded(threshold float64) bool {
	online := c.wanted - c.offline
	return len(c.waiting) == 0 && len(c.held) == 0 && online > 0 && float64(c.ready) >= threshold*float64(online)
}

func (d *decider) count(in map[string]bool) counts {
	var c counts
	for _, g := range d.Groups {
		if !in[g.Name] {
			continue
		}
		c.wanted, c.offline = c.wanted+g.Wanted, c.offline+g.Offline
		switch {
		case g.Held && d.revisionOf(g.Name) != d.next.Revision:
			c.held = append(c.held, g.Name)
		case g.Revision == d.next.Revision:
			c.ready += min(g.Ready, g.Wanted-g.Offline)
		case g.Wanted > g.Offline:
			c.waiting = append(c.waiting, g.Name)
		}
	}
	slices.Sort(c.waiting)
	slices.Sort(c.held)
	return c
}

// revisionOf returns the revision that a group has been given: its own, or the one that all had before. A group that is new in the middle of a
// rollout begins with the latter, and gets the newest in its step.
func (d *decider) revisionOf(name string) string {
	for _, g := range d.next.Groups {
		if g.Name == name {
			return g.Revision
		}
	}
	return d.next.StableRevision
}

func (d *decider) decision() Decision {
	result := Decision{Revisions: map[string]string{}}
	kept := d.next.Groups[:0]
	for _, g := range d.next.Groups { // a group that is no target any more must not come back with an old revision
		if slices.Contains(d.names, g.Name) && g.Revision != d.next.StableRevision {
			kept = append(kept, g)
		}
	}
	d.next.Groups = kept
	for _, name := range d.names {
		if revision := d.revisionOf(name); revision != "" {
			result.Revisions[name] = revision
		}
	}
	if d.next.Phase == apps.RolloutSoaking {
		result.CheckAfter = max(d.Plan.Soak-d.Now.Sub(d.next.ReadySince.Time), time.Millisecond)
	}
	result.Status = d.next
	return result
}
