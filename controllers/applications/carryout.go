package applications

import (
	"context"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/applications/children"
	"github.com/frond-edge/frond/controllers/applications/render"
	"github.com/frond-edge/frond/controllers/applications/rollout"
)

// work is one pass over an application.
type work struct {
	*Controller
	app *apps.EdgeApplication
	// faults are what is wrong with the specification, failures what went wrong when objects were applied.
	faults   []render.Fault
	failures []string
	applier  *applier
	// tooLong: there are more objects than the list of what was made can name.
	tooLong bool
	// annotations are those of the groups, targetScope the targets.
	annotations func(group string) map[string]string
	targetScope apps.WorkloadScope
	// rollout is the decision's status.
	rollout apps.RolloutStatus
	// confirmed is when the application was last compared with the apiserver's.
	confirmed time.Time
	// complete is false if what is wanted is not wholly known, or not all of it could be applied: then nothing is deleted.
	complete bool
	// objects are what is wanted, in order; counted is parallel to it.
	objects []render.Object
	counted []podCounts
	aims    []render.Target
	targets []apps.TargetStatus
	// wait is when to look again, 0 for never.
	wait time.Duration
}

// confirmPeriod is how long the answer counts that an application is what a pass began with.
const confirmPeriod = 5 * time.Second

// carryOut takes one step: decide, store the decision, apply, delete, write the status. It returns when to look again.
func carryOut(ctx context.Context, c *Controller, app *apps.EdgeApplication) (time.Duration, error) {
	w := &work{Controller: c, app: app.DeepCopy(), complete: true}
	w.applier = &applier{Controller: c, app: w.app, again: w.lookAgain, confirm: w.confirm}
	if rolling := app.Status.Rollout; app.Annotations[names.AnnotationRollout] != "" || rolling != nil && rolling.Phase != apps.RolloutCompleted {
		w.confirmed = time.Time{} // a cached status could be of before another replica's step
		if err := w.confirm(ctx); err != nil {
			return 0, err
		}
	}
	plan, faults := readPlan(w.app), []render.Fault(nil)
	groups := c.groups.Groups()
	w.annotations = render.Annotations(groups)
	scope, fault := render.Scope(w.app, groups)
	if selector := w.app.Annotations[names.AnnotationTargetGroups]; selector != "" && !c.groups.Installed() {
		fault = &render.Fault{Field: "metadata.annotations[" + names.AnnotationTargetGroups + "]", Reason: "the cluster has no kind NodeGroup: frond init installs it"}
	}
	if plan.fault != nil {
		faults = append(faults, *plan.fault)
	}
	if fault != nil {
		faults = append(faults, *fault)
	}
	if len(faults) > 0 { // who should have what is not known: all stays as it is
		return 0, w.writeFaults(ctx, faults)
	}
	w.targetScope = scope
	newest, err := c.revisions.Ensure(ctx, w.app)
	if err != nil {
		return 0, err
	}
	decision, err := w.decide(plan.plan, newest)
	if err != nil {
		return 0, err
	}
	if err := w.storeRollout(ctx, decision.Status); err != nil {
		return 0, err
	}
	w.lookAgain(decision.CheckAfter)
	if err := w.collect(ctx, decision, newest); err != nil {
		return 0, err
	}
	if err := w.recordUnion(ctx); err != nil {
		return 0, err
	}
	if !w.tooLong {
		if err := w.applyAll(ctx); err != nil {
			return 0, err
		}
	}
	if err := w.count(decision); err != nil {
		return 0, err
	}
	if !w.tooLong {
		if err := w.prune(ctx); err != nil {
			return 0, err
		}
	}
	return w.wait, w.writeStatus(ctx)
}

// confirm compares the application with the apiserver's, unless it did so a moment ago, and checks that this replica still owns it.
func (w *work) confirm(ctx context.Context) error {
	if time.Since(w.confirmed) < confirmPeriod {
		return nil
	}
	live, err := getApplication(ctx, w.clients.Applications, keyOf(w.app))
	if err != nil {
		return err
	}
	if live == nil || live.UID != w.app.UID || live.ResourceVersion != w.app.ResourceVersion || !w.owner.Owns(ownerKey(keyOf(w.app))) {
		return errStale
	}
	w.confirmed = time.Now()
	return nil
}

func (w *work) lookAgain(after time.Duration) {
	if after > 0 && (w.wait == 0 || after < w.wait) {
		w.wait = after
	}
}

// planOf is the plan of a rollout, nil without one, or why it cannot be read.
type planOf struct {
	plan  *rollout.Plan
	fault *render.Fault
}

func readPlan(app *apps.EdgeApplication) planOf {
	text, set := app.Annotations[names.AnnotationRollout]
	if !set {
		return planOf{}
	}
	plan, err := rollout.ParsePlan(text)
	if err != nil {
		return planOf{fault: &render.Fault{Field: "metadata.annotations[" + names.AnnotationRollout + "]", Reason: err.Error()}}
	}
	return planOf{plan: &plan}
}

// renderRevision returns the objects of a revision for all targets. A target's own differences are those of the revision, if it has the
// target.
func (w *work) renderRevision(spec apps.EdgeApplicationSpec) render.Result {
	app := &apps.EdgeApplication{ObjectMeta: metav1.ObjectMeta{Namespace: w.app.Namespace, Name: w.app.Name}}
	app.Spec.WorkloadTemplate = spec.WorkloadTemplate
	app.Spec.WorkloadScope = *w.targetScope.DeepCopy()
	for i, t := range app.Spec.WorkloadScope.TargetNodeGroups {
		at := slices.IndexFunc(spec.WorkloadScope.TargetNodeGroups, func(o apps.TargetNodeGroup) bool { return o.Name == t.Name })
		if at >= 0 {
			app.Spec.WorkloadScope.TargetNodeGroups[i] = spec.WorkloadScope.TargetNodeGroups[at]
		}
	}
	return render.Render(app, w.annotations)
}

// decide asks package rollout who gets which revision.
func (w *work) decide(plan *rollout.Plan, newest string) (rollout.Decision, error) {
	result := w.renderRevision(w.app.Spec)
	targets, _ := render.Targets(w.targetScope)
	request := rollout.Request{
		Plan: plan, Newest: newest, Now: time.Now(),
		Paused: w.app.Annotations[names.AnnotationRolloutPaused] == "true", Approval: w.app.Annotations[names.AnnotationRolloutApproved],
	}
	if w.app.Status.Rollout != nil {
		request.Status = *w.app.Status.Rollout
	}
	for _, target := range targets {
		group, err := w.countTarget(target, newest, result.Objects)
		if err != nil {
			return rollout.Decision{}, err
		}
		if target.Group != "" {
			open, next := w.groups.WindowOf(target.Group)
			group.Held = !open
			if !next.IsZero() {
				w.lookAgain(max(time.Until(next), time.Second))
			}
		}
		request.Groups = append(request.Groups, group)
	}
	return rollout.Decide(request), nil
}

// countTarget counts the pods of a target as far as its objects are of the newest revision.
func (w *work) countTarget(target render.Target, newest string, objects []render.Object) (rollout.Group, error) {
	g := rollout.Group{Name: target.Name, Revision: newest}
	var offline int
	for _, o := range objects {
		if o.Target != target.Name {
			continue
		}
		live, err := w.children.Get(o.ID)
		if err != nil && !children.IsUnavailable(err) {
			return g, err
		}
		applied := o.Content != nil && live != nil && live.GetAnnotations()[annotationDigest] == digestOf(o.Content)
		if !applied {
			g.Revision = ""
		}
		n := countPods(o, live, applied && !w.isDrifted(live))
		g.Wanted, g.Ready = g.Wanted+n.wanted, g.Ready+n.ready
		offline += w.offlinePods(target, o.ID)
	}
	g.Offline = min(offline, g.Wanted-g.Ready)
	return g, nil
}

// collect makes the list of wanted objects: those of each target in its revision, and those that are made once.
func (w *work) collect(ctx context.Context, decision rollout.Decision, newest string) error {
	results := map[string]render.Result{newest: w.renderRevision(w.app.Spec)}
	w.faults = append(w.faults, results[newest].Faults...)
	w.complete = w.complete && results[newest].Complete
	revisions := slices.Sorted(maps.Values(decision.Revisions))
	if stable := decision.Status.StableRevision; stable != "" {
		revisions = append(revisions, stable)
	}
	for _, revision := range slices.Compact(revisions) {
		if _, done := results[revision]; done {
			continue
		}
		spec, found, err := w.revisions.Spec(ctx, w.app, revision)
		if err != nil {
			return err
		}
		if !found {
			w.complete = false
			w.faults = append(w.faults, render.Fault{Field: "status.rollout", Reason: "the ControllerRevision " + revision + " is gone: groups that have it stay as they are"})
			continue
		}
		results[revision] = w.renderRevision(spec)
		w.complete = w.complete && results[revision].Complete
	}
	w.aims, _ = render.Targets(w.targetScope)
	w.objects = wantedObjects(results, w.aims, decision, newest)
	for _, target := range w.aims {
		if decision.Revisions[target.Name] == "" {
			w.complete = false // it gets nothing yet, and what another program made for it before stays
		}
	}
	for _, o := range w.objects { // nothing is recorded as made before it is known what can be made
		if _, err := w.children.Get(o.ID); err != nil && !children.IsUnavailable(err) {
			return err
		}
	}
	return nil
}

// count counts the pods of all objects, once it is known which objects somebody has changed.
func (w *work) count(decision rollout.Decision) error {
	for i := range w.objects {
		n, err := w.countObject(w.objects[i])
		if err != nil {
			return err
		}
		w.counted = append(w.counted, n)
	}
	for _, target := range w.aims {
		w.targets = append(w.targets, w.targetStatus(target, decision.Revisions[target.Name]))
	}
	return nil
}

// wantedObjects picks the objects of each target from its revision. An object that is made once is the stable revision's while a rollout is in
// progress, because groups that have not been given the newest one use it; what only the newest one has, is made with the first step.
func wantedObjects(results map[string]render.Result, targets []render.Target, decision rollout.Decision, newest string) []render.Object {
	var wanted []render.Object
	seen := map[render.ID]bool{}
	add := func(revision, target string) {
		for _, o := range results[revision].Objects {
			if o.Target == target && !seen[o.ID] {
				seen[o.ID] = true
				wanted = append(wanted, o)
			}
		}
	}
	if stable := decision.Status.StableRevision; stable != "" && stable != newest {
		add(stable, "")
	}
	for _, revision := range slices.Sorted(maps.Values(decision.Revisions)) { // groups may have one that was superseded in the middle of its rollout
		add(revision, "")
	}
	add(newest, "")
	for _, target := range targets {
		if revision := decision.Revisions[target.Name]; revision != "" {
			add(revision, target.Name)
		}
	}
	slices.SortStableFunc(wanted, func(a, b render.Object) int { return a.Ordinal - b.Ordinal })
	return wanted
}

func (w *work) countObject(o render.Object) (podCounts, error) {
	live, err := w.children.Get(o.ID)
	if err != nil && !children.IsUnavailable(err) {
		return podCounts{}, err
	}
	applied := o.Content != nil && live != nil && live.GetAnnotations()[annotationDigest] == digestOf(o.Content)
	return countPods(o, live, applied && !w.isDrifted(live)), nil
}

func (w *work) targetStatus(target render.Target, revision string) apps.TargetStatus {
	s := apps.TargetStatus{Name: target.Name, Revision: revision}
	offline := 0
	for i, o := range w.objects {
		if o.Target == target.Name {
			s.Wanted += int32(w.counted[i].wanted) //nolint:gosec // Kubernetes' own numbers of replicas
			s.Ready += int32(w.counted[i].ready)   //nolint:gosec // the same
			offline += w.offlinePods(target, o.ID)
		}
	}
	s.Offline = min(int32(offline), s.Wanted-s.Ready) //nolint:gosec // the same
	return s
}
