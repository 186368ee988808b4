package applications

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers/applications/children"
	"github.com/frond-edge/frond/controllers/applications/contained"
	"github.com/frond-edge/frond/controllers/applications/render"
)

// The conditions of an EdgeApplication.
const (
	ConditionValid   = "Valid"
	ConditionApplied = "Applied"
	ConditionDrifted = "Drifted"
	ConditionReady   = "Ready"
)

// maxNamed is how many faults a message names.
const maxNamed = 5

// getApplication reads an application from the apiserver; nil if there is none.
func getApplication(ctx context.Context, client rest.Interface, key types.NamespacedName) (*apps.EdgeApplication, error) {
	app := &apps.EdgeApplication{}
	err := client.Get().Resource(apps.EdgeApplicationsResource).Namespace(key.Namespace).Name(key.Name).Do(ctx).Into(app)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the application: %w", err)
	}
	return app, nil
}

// storeRollout stores the decision before anything is done for it. If another replica has written meanwhile, this is a conflict, and nothing is
// done. What is only for people is left to writeStatus: it changes with every pod.
func (w *work) storeRollout(ctx context.Context, next apps.RolloutStatus) error {
	w.rollout = next
	if last := w.app.Status.Rollout; last != nil {
		same := *last.DeepCopy()
		same.Message = next.Message
		if apiequality.Semantic.DeepEqual(same, next) {
			return nil
		}
	}
	w.app.Status.Rollout = next.DeepCopy()
	return w.putStatus(ctx)
}

func (w *work) putStatus(ctx context.Context) error {
	updated := &apps.EdgeApplication{}
	err := w.clients.Applications.Put().Resource(apps.EdgeApplicationsResource).Namespace(w.app.Namespace).Name(w.app.Name).SubResource("status").
		Body(w.app).Do(ctx).Into(updated)
	if err != nil {
		return err
	}
	w.app.ResourceVersion = updated.ResourceVersion
	return nil
}

// writeFaults writes only that the specification is not valid; all else stays as it was.
func (w *work) writeFaults(ctx context.Context, faults []render.Fault) error {
	next := *w.app.Status.DeepCopy()
	next.ObservedGeneration = w.app.Generation
	conditionSetter(&next.Conditions, w.app.Generation)(ConditionValid, false, "", "InvalidSpecification", listedFaults(faults))
	return w.replaceStatus(ctx, next)
}

// writeStatus writes the status after a pass.
func (w *work) writeStatus(ctx context.Context) error { return w.replaceStatus(ctx, w.status()) }

// replaceStatus writes a status if it differs, and not more often than once in statusPeriod.
func (w *work) replaceStatus(ctx context.Context, next apps.EdgeApplicationStatus) error {
	before := w.app.Status
	if apiequality.Semantic.DeepEqual(before, next) {
		return nil
	}
	w.mu.Lock()
	since := time.Since(w.written[keyOf(w.app)])
	w.mu.Unlock()
	if since < statusPeriod {
		w.queue.AddAfter(keyOf(w.app), statusPeriod-since)
		return nil
	}
	w.app.Status = next
	if err := w.putStatus(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	w.written[keyOf(w.app)] = time.Now()
	w.mu.Unlock()
	for _, kind := range []string{ConditionValid, ConditionApplied} {
		is, was := meta.FindStatusCondition(next.Conditions, kind), meta.FindStatusCondition(before.Conditions, kind)
		if is != nil && is.Status == metav1.ConditionFalse && (was == nil || was.Message != is.Message || was.Status != is.Status) {
			about := corev1.ObjectReference{
				APIVersion: apps.GroupVersion().String(), Kind: apps.EdgeApplicationKind, Namespace: w.app.Namespace, Name: w.app.Name, UID: w.app.UID,
			}
			w.warn(about, is.Reason, is.Message)
		}
	}
	return nil
}

// status returns the status of the application after this pass.
func (w *work) status() apps.EdgeApplicationStatus {
	next := *w.app.Status.DeepCopy()
	next.ObservedGeneration, next.Targets, next.WorkloadStatus, next.Rollout = w.app.Generation, w.targets, nil, &w.rollout
	var wanted, ready, offline int32
	unavailable := 0
	for i, o := range w.objects {
		s := apps.ManifestStatus{Conditions: apps.ManifestProcessing, Identifier: apps.ResourceIdentifier{
			Ordinal: o.Ordinal, Group: o.ID.Group, Version: o.Version, Kind: o.ID.Kind, Namespace: o.ID.Namespace, Name: o.ID.Name,
		}}
		if resource, err := w.children.Resource(o.ID.GroupKind()); err == nil {
			s.Identifier.Resource = resource.Resource
		}
		if o.Content != nil && w.counted[i].ready >= w.counted[i].wanted {
			s.Conditions = apps.ManifestAvailable
		} else {
			unavailable++
		}
		next.WorkloadStatus = append(next.WorkloadStatus, s)
	}
	for _, t := range w.targets {
		wanted, ready, offline = wanted+t.Wanted, ready+t.Ready, offline+t.Offline
	}
	set := conditionSetter(&next.Conditions, w.app.Generation)
	set(ConditionValid, len(w.faults) == 0, "AllValid", "InvalidSpecification", listedFaults(w.faults))
	set(ConditionApplied, len(w.failures) == 0, "AllApplied", "ApplyFailed", listed(w.failures))
	slices.Sort(w.applier.drifted)
	set(ConditionDrifted, len(w.applier.drifted) > 0, "ChangedByOthers", "AsApplied", listed(w.applier.drifted))
	counts := fmt.Sprintf("%d of %d pods in %d targets are ready, %d of the others are on nodes without a link; %d of %d objects are not available",
		ready, wanted, len(w.targets), offline, unavailable, len(w.objects))
	set(ConditionReady, unavailable == 0 && len(w.faults) == 0, "AllReady", "NotAllReady", counts)
	return next
}

func listedFaults(faults []render.Fault) string {
	var texts []string
	for _, f := range faults {
		texts = append(texts, f.String())
	}
	return listed(texts)
}

// listed returns the first texts, and how many more there are.
func listed(texts []string) string {
	if len(texts) > maxNamed {
		return fmt.Sprintf("%s; and %d more", strings.Join(texts[:maxNamed], "; "), len(texts)-maxNamed)
	}
	return strings.Join(texts, "; ")
}

func conditionSetter(conditions *[]metav1.Condition, generation int64) func(kind string, holds bool, yes, no, message string) {
	return func(kind string, holds bool, yes, no, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: no, Message: message, ObservedGeneration: generation}
		if holds {
			c.Status, c.Reason = metav1.ConditionTrue, yes
		}
		meta.SetStatusCondition(conditions, c)
	}
}

// applyAll applies the objects that are not as they should be. A failure concerns its object alone.
func (w *work) applyAll(ctx context.Context) error {
	for _, o := range w.objects {
		if o.Content == nil {
			w.complete = false // its last version stays, with what that needs
			continue
		}
		switch err := w.applier.applyObject(ctx, o); {
		case errors.Is(err, children.ErrUnread):
			w.complete = false
			w.lookAgain(unreadRetry)
		case apierrors.IsConflict(err): // somebody writes it at the same time
			w.complete = false
			w.lookAgain(unreadRetry)
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errStale):
			return err
		case err != nil:
			w.complete = false // what the last version needs must stay
			w.failures = append(w.failures, fmt.Sprintf("%s: %v", o.ID, err))
			w.lookAgain(retryMax)
		}
	}
	return nil
}

// wanted returns the list of what is wanted.
func (w *work) wanted() contained.List { return contained.Of(w.objects) }

// makeable returns what is wanted without the objects that cannot be made, unless they were made before.
func (w *work) makeable(made contained.List) contained.List {
	return slices.DeleteFunc(w.wanted(), func(e contained.Entry) bool {
		_, err := w.children.Get(e.ID())
		return children.IsUnavailable(err) && !made.Has(e.ID())
	})
}

// recordUnion stores the list of what is wanted and what was made before, before the first object is applied. A list that cannot be read is
// reported, and nothing is deleted.
func (w *work) recordUnion(ctx context.Context) error {
	made, err := contained.Parse(w.app.Annotations[contained.Annotation])
	if err != nil {
		w.complete = false
		w.failures = append(w.failures, err.Error())
		return nil
	}
	return w.record(ctx, made, w.makeable(made).Union(made))
}

// record stores a list, if it names other objects than the stored one.
func (w *work) record(ctx context.Context, made, list contained.List) error {
	if made.Same(list) {
		return nil
	}
	text, err := list.Format()
	if err != nil { // nothing may be made that the list does not name
		w.tooLong, w.failures = true, append(w.failures, err.Error())
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": w.app.ResourceVersion, "annotations": map[string]string{contained.Annotation: text},
	}})
	if err != nil {
		return err
	}
	updated := &apps.EdgeApplication{}
	err = w.clients.Applications.Patch(types.MergePatchType).Resource(apps.EdgeApplicationsResource).Namespace(w.app.Namespace).Name(w.app.Name).
		Body(patch).Do(ctx).Into(updated)
	if err != nil {
		return err
	}
	w.app.ResourceVersion, w.app.Annotations = updated.ResourceVersion, updated.Annotations
	return nil
}

// prune deletes what the application has made and no longer wants, and then shortens the list.
func (w *work) prune(ctx context.Context) error {
	made, err := contained.Parse(w.app.Annotations[contained.Annotation])
	if err != nil || !w.complete {
		return nil //nolint:nilerr // recordUnion has reported it
	}
	var left contained.List
	for _, e := range made.Without(w.wanted()) {
		err := w.applier.deleteObject(ctx, e.ID())
		if errors.Is(err, errStale) {
			return err
		}
		if err != nil {
			w.failures = append(w.failures, fmt.Sprintf("%s is not deleted: %v", e.ID(), err))
			w.lookAgain(retryMax)
			left = append(left, e)
		}
	}
	return w.record(ctx, made, append(w.makeable(made), left...))
}
