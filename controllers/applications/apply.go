package applications

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/applications/render"
)

const (
	fieldManager = "frond-edgeapplication"
	// annotationDigest of an object is the digest of what was applied.
	annotationDigest = "frond.io/template-digest"
	// AnnotationContained of an application lists the objects that it has made, as KubeEdge does.
	AnnotationContained = "apps.kubeedge.io/last-contained-resources"
	// correctEvery is the least time between two corrections of an object that somebody else keeps changing.
	correctEvery = 10 * time.Second
)

// digestOf returns the digest of an object as it is applied.
func digestOf(o *unstructured.Unstructured) string {
	text, err := json.Marshal(o.Object)
	if err != nil {
		return "" // it was made from JSON
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:8])
}

// applyAll applies the objects that are not as they should be. A failure concerns its object alone.
func (w *work) applyAll(ctx context.Context) error {
	for _, o := range w.objects {
		if o.Content == nil {
			continue // its last version stays
		}
		switch err := w.applyObject(ctx, o); {
		case errors.Is(err, errUnread):
			w.lookAgain(unreadRetry)
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			w.failures = append(w.failures, fmt.Sprintf("%s: %v", o.ID, err))
			w.lookAgain(retryMax)
		}
	}
	return nil
}

func (w *work) applyObject(ctx context.Context, o render.Object) error {
	resource, err := w.resource(o.ID.GroupVersionKind)
	if err != nil {
		return err
	}
	client := w.clients.Dynamic.Resource(resource).Namespace(o.ID.Namespace)
	live, err := w.children.get(resource, types.NamespacedName{Namespace: o.ID.Namespace, Name: o.ID.Name})
	if err != nil {
		return err
	}
	digest := digestOf(o.Content)
	if live == nil { // the cache may be late, and server-side apply would change what it does not create
		if live, err = getObject(ctx, client, o.ID.Name); err != nil {
			return err
		}
	}
	if live != nil {
		if err := w.checkOwner(live); err != nil {
			return err
		}
		if live.GetAnnotations()[annotationDigest] == digest && metav1.IsControlledBy(live, w.app) {
			return w.checkDrift(ctx, client, o, live, digest)
		}
	}
	return w.send(ctx, client, o, digest)
}

func getObject(ctx context.Context, client dynamic.ResourceInterface, name string) (*unstructured.Unstructured, error) {
	live, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return live, err
}

// checkOwner refuses to change what somebody else has made.
func (w *work) checkOwner(live *unstructured.Unstructured) error {
	owner := metav1.GetControllerOf(live)
	switch {
	case owner != nil && owner.UID == w.app.UID:
		return nil
	case owner != nil:
		return fmt.Errorf("belongs to %s %s and is left as it is", owner.Kind, owner.Name)
	case w.app.Annotations[names.AnnotationAdopt] == "true":
		return nil
	}
	return fmt.Errorf("exists already and is left as it is; the annotation %s=true on the application takes it over", names.AnnotationAdopt)
}

// checkDrift finds out whether somebody has changed the fields that the application sets, and corrects them if asked to.
func (w *work) checkDrift(ctx context.Context, client dynamic.ResourceInterface, o render.Object, live *unstructured.Unstructured, digest string) error {
	w.mu.Lock()
	last, known := w.applied[live.GetUID()]
	w.mu.Unlock()
	version := versionOf(live)
	if known && last.digest == digest && last.version == version {
		if last.drifted {
			w.drifted = append(w.drifted, o.ID.String())
		}
		return nil
	}
	body, err := w.body(o, digest)
	if err != nil {
		return err
	}
	tried, err := client.Patch(ctx, o.ID.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: fieldManager, Force: new(true), DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	whole, err := getObject(ctx, client, o.ID.Name)
	if err != nil || whole == nil {
		return errors.Join(err, errUnread)
	}
	drifted := !sameContent(tried, whole)
	if drifted && w.app.Annotations[names.AnnotationDrift] == "correct" {
		if since := time.Since(last.at); known && since < correctEvery {
			w.lookAgain(correctEvery - since)
			w.drifted = append(w.drifted, o.ID.String())
			return nil
		}
		return w.send(ctx, client, o, digest)
	}
	w.remember(whole.GetUID(), appliedObject{digest: digest, version: versionOf(whole), drifted: drifted, at: last.at})
	if drifted {
		w.drifted = append(w.drifted, o.ID.String())
	}
	return nil
}

// versionOf returns what changes when somebody changes more of an object than its status: its generation, and where it has none, its version.
func versionOf(o *unstructured.Unstructured) string {
	if g := o.GetGeneration(); g != 0 {
		return fmt.Sprint("generation ", g)
	}
	return o.GetResourceVersion()
}

// sameContent compares two versions of an object, without what a server sets.
func sameContent(a, b *unstructured.Unstructured) bool {
	plain := func(o *unstructured.Unstructured) map[string]any {
		o = o.DeepCopy()
		unstructured.RemoveNestedField(o.Object, "status")
		for _, field := range []string{"managedFields", "resourceVersion", "generation"} {
			unstructured.RemoveNestedField(o.Object, "metadata", field)
		}
		return o.Object
	}
	return apiequality.Semantic.DeepEqual(plain(a), plain(b))
}

func (w *work) remember(uid types.UID, o appliedObject) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applied[uid] = o
}

// body returns an object as it is sent: with its digest, and the application as its controller.
func (w *work) body(o render.Object, digest string) ([]byte, error) {
	sent := o.Content.DeepCopy()
	annotations := sent.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationDigest] = digest
	sent.SetAnnotations(annotations)
	sent.SetOwnerReferences([]metav1.OwnerReference{ownerReference(w.app)})
	return sent.MarshalJSON()
}

func (w *work) send(ctx context.Context, client dynamic.ResourceInterface, o render.Object, digest string) error {
	body, err := w.body(o, digest)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	made, err := client.Patch(ctx, o.ID.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: fieldManager, Force: new(true)})
	if err != nil {
		return err
	}
	w.remember(made.GetUID(), appliedObject{digest: digest, version: versionOf(made), at: time.Now()})
	return nil
}

// contained is one entry of AnnotationContained, which KubeEdge writes too. Its ordinal is not compared: manifests may be reordered.
type contained struct {
	Ordinal   int    `json:"ordinal"`
	Group     string `json:"group,omitempty"`
	Version   string `json:"version,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Resource  string `json:"resource,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

func (e contained) id() render.ID {
	return render.ID{GroupVersionKind: schema.GroupVersionKind{Group: e.Group, Version: e.Version, Kind: e.Kind}, Namespace: e.Namespace, Name: e.Name}
}

// readContained returns the objects that the application has made. A list that cannot be read is reported, and nothing is deleted.
func (w *work) readContained() ([]contained, error) {
	text := w.app.Annotations[AnnotationContained]
	if text == "" {
		return nil, nil
	}
	var list []contained
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("understand the annotation %s: %w", AnnotationContained, err)
	}
	return list, nil
}

// wantedEntries returns the entries of what is wanted.
func (w *work) wantedEntries() []contained {
	list := make([]contained, 0, len(w.objects))
	for _, o := range w.objects {
		e := contained{Ordinal: o.Ordinal, Group: o.ID.Group, Version: o.ID.Version, Kind: o.ID.Kind, Namespace: o.ID.Namespace, Name: o.ID.Name}
		if resource, err := w.resource(o.ID.GroupVersionKind); err == nil {
			e.Resource = resource.Resource
		}
		list = append(list, e)
	}
	return list
}

// recorded returns the wanted entries that belong into the list: not those that cannot be made, unless they were made before.
func (w *work) recorded(made []contained) []contained {
	return slices.DeleteFunc(w.wantedEntries(), func(e contained) bool {
		_, err := w.live(e.id())
		return isUnmapped(err) && !slices.ContainsFunc(made, func(o contained) bool { return o.id() == e.id() })
	})
}

// containedUnion returns what is wanted and what was made before: the list that is stored before the first object is applied, so that a crash
// leaves no object that nobody knows of.
func (w *work) containedUnion() []contained {
	before, err := w.readContained()
	if err != nil {
		w.complete = false
		w.failures = append(w.failures, err.Error())
		return nil
	}
	list := w.recorded(before)
	for _, e := range before {
		if !slices.ContainsFunc(list, func(o contained) bool { return o.id() == e.id() }) {
			list = append(list, e)
		}
	}
	return list
}

// recordContained stores the list if it differs in what it names.
func (w *work) recordContained(ctx context.Context, list []contained) error {
	before, err := w.readContained()
	if err != nil {
		return nil //nolint:nilerr // containedUnion has reported it
	}
	key := func(e contained) render.ID { return e.id() }
	if slices.EqualFunc(before, list, func(a, b contained) bool { return key(a) == key(b) }) {
		return nil
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": w.app.ResourceVersion, "annotations": map[string]string{AnnotationContained: string(text)},
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
	if !w.complete {
		return nil
	}
	made, err := w.readContained()
	if err != nil {
		return nil //nolint:nilerr // containedUnion has reported it
	}
	wanted := w.wantedEntries()
	var left []contained
	for _, e := range made {
		if slices.ContainsFunc(wanted, func(o contained) bool { return o.id() == e.id() }) {
			continue
		}
		if err := w.deleteObject(ctx, e.id()); err != nil {
			w.failures = append(w.failures, fmt.Sprintf("%s is not deleted: %v", e.id(), err))
			w.lookAgain(retryMax)
			left = append(left, e)
		}
	}
	return w.recordContained(ctx, append(w.recorded(made), left...))
}

// deleteObject deletes an object, if the application is its controller.
func (w *work) deleteObject(ctx context.Context, id render.ID) error {
	resource, err := w.resource(id.GroupVersionKind)
	if isUnmapped(err) {
		return nil // with a kind its objects are gone
	}
	if err != nil {
		return err
	}
	client := w.clients.Dynamic.Resource(resource).Namespace(id.Namespace)
	live, err := getObject(ctx, client, id.Name)
	if err != nil || live == nil || !metav1.IsControlledBy(live, w.app) {
		return err
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(live.GetUID())), PropagationPolicy: new(metav1.DeletePropagationBackground)}
	if err := client.Delete(ctx, id.Name, options); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	w.mu.Lock()
	delete(w.applied, live.GetUID())
	w.mu.Unlock()
	return nil
}
