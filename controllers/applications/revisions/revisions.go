// Package revisions stores the specifications that applications had, as ControllerRevisions.
package revisions

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers/applications/rollout"
)

// keptRevisions is how many an application keeps for undo, beside those that groups have.
const keptRevisions = 10

// Store keeps the specifications of applications, also in memory: they never change. Its methods may be called concurrently.
type Store struct {
	kube kubernetes.Interface

	mu    sync.Mutex
	specs map[revisionKey]apps.EdgeApplicationSpec // guarded by mu
}

// revisionKey is a revision of an application. An application that is deleted and made again is another one.
type revisionKey struct {
	app  types.UID
	name string
}

// New returns a Store.
func New(kube kubernetes.Interface) *Store {
	return &Store{kube: kube, specs: map[revisionKey]apps.EdgeApplicationSpec{}}
}

// Forget frees the memory of the revisions of an application.
func (r *Store) Forget(app types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.specs, func(key revisionKey, _ apps.EdgeApplicationSpec) bool { return key.app == app })
}

// Ensure stores the application's present specification, and returns its name.
func (r *Store) Ensure(ctx context.Context, app *apps.EdgeApplication) (string, error) {
	name, err := rollout.RevisionName(app.Name, app.Spec)
	if err != nil {
		return "", err
	}
	key := revisionKey{app.UID, name}
	r.mu.Lock()
	_, known := r.specs[key]
	r.mu.Unlock()
	if known {
		return name, nil
	}
	if err := r.create(ctx, app, name); err != nil {
		return "", err
	}
	r.mu.Lock()
	r.specs[key] = *app.Spec.DeepCopy()
	r.mu.Unlock()
	return name, nil
}

func (r *Store) create(ctx context.Context, app *apps.EdgeApplication, name string) error {
	client := r.kube.AppsV1().ControllerRevisions(app.Namespace)
	all, err := client.List(ctx, metav1.ListOptions{LabelSelector: rollout.LabelApplication + "=" + rollout.LabelValue(app.Name)})
	if err != nil {
		return fmt.Errorf("list revisions: %w", err)
	}
	own := slices.DeleteFunc(all.Items, func(o appsv1.ControllerRevision) bool { return !metav1.IsControlledBy(&o, app) })
	last := int64(0)
	for _, o := range own {
		if o.Name == name {
			return nil
		}
		last = max(last, o.Revision)
	}
	text, err := json.Marshal(app.Spec)
	if err != nil {
		return fmt.Errorf("encode the specification: %w", err)
	}
	_, err = client.Create(ctx, &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{rollout.LabelApplication: rollout.LabelValue(app.Name)}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(app, apps.GroupVersion().WithKind(apps.EdgeApplicationKind))},
		},
		Data: runtime.RawExtension{Raw: text}, Revision: last + 1,
	}, metav1.CreateOptions{})
	if err != nil { // one of that name may belong to an application that was deleted, and go with it soon
		return fmt.Errorf("store revision %s: %w", name, err)
	}
	return r.prune(ctx, app, own)
}

// prune deletes the oldest revisions, but for those that a group may have.
func (r *Store) prune(ctx context.Context, app *apps.EdgeApplication, own []appsv1.ControllerRevision) error {
	used := map[string]bool{}
	if s := app.Status.Rollout; s != nil {
		used[s.Revision], used[s.StableRevision] = true, true
		for _, g := range s.Groups {
			used[g.Revision] = true
		}
	}
	slices.SortFunc(own, func(a, b appsv1.ControllerRevision) int { return int(a.Revision - b.Revision) })
	for i := range max(len(own)-keptRevisions, 0) {
		if used[own[i].Name] {
			continue
		}
		err := r.kube.AppsV1().ControllerRevisions(app.Namespace).Delete(ctx, own[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete revision %s: %w", own[i].Name, err)
		}
		r.mu.Lock()
		delete(r.specs, revisionKey{app.UID, own[i].Name})
		r.mu.Unlock()
	}
	return nil
}

// Spec returns the specification of a revision; found is false if somebody has deleted it.
func (r *Store) Spec(ctx context.Context, app *apps.EdgeApplication, name string) (spec apps.EdgeApplicationSpec, found bool, err error) {
	key := revisionKey{app.UID, name}
	r.mu.Lock()
	spec, found = r.specs[key]
	r.mu.Unlock()
	if found {
		return spec, true, nil
	}
	o, err := r.kube.AppsV1().ControllerRevisions(app.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return spec, false, nil
	}
	if err != nil {
		return spec, false, fmt.Errorf("read revision %s: %w", name, err)
	}
	if !metav1.IsControlledBy(o, app) {
		return spec, false, nil
	}
	if err := json.Unmarshal(o.Data.Raw, &spec); err != nil {
		return spec, false, fmt.Errorf("understand revision %s: %w", name, err)
	}
	r.mu.Lock()
	r.specs[key] = spec
	r.mu.Unlock()
	return spec, true, nil
}
