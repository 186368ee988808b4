package applications

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/applications/children"
	"github.com/frond-edge/frond/controllers/applications/render"
)

const (
	fieldManager = "frond-edgeapplication"
	// annotationDigest of an object is the digest of what was applied.
	annotationDigest = "frond.io/template-digest"
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

// applier applies and deletes the objects of one application.
type applier struct {
	*Controller
	app *apps.EdgeApplication
	// drifted are the objects that somebody else has changed.
	drifted []string
	// again asks for another look.
	again func(after time.Duration)
	// confirm returns errStale if the application is not what this pass began with. It is called before each write.
	confirm func(context.Context) error
}

// errStale ends a pass that began with an application that has changed since, or that another replica owns now.
var errStale = errors.New("the application has changed meanwhile")

func (a *applier) applyObject(ctx context.Context, o render.Object) error {
	live, err := a.children.Get(o.ID)
	if err != nil {
		return err
	}
	client, err := a.clientOf(o.ID, o.Version)
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
		if err := a.checkOwner(live); err != nil {
			return err
		}
		if live.GetAnnotations()[annotationDigest] == digest && metav1.IsControlledBy(live, a.app) {
			return a.checkDrift(ctx, client, o, live, digest)
		}
		if err := takeFields(ctx, client, live); err != nil {
			return err
		}
	}
	return a.send(ctx, client, o, digest)
}

func (a *applier) clientOf(id render.ID, versions ...string) (dynamic.ResourceInterface, error) {
	resource, err := a.children.Resource(id.GroupKind(), versions...)
	if err != nil {
		return nil, err
	}
	return a.clients.Dynamic.Resource(resource).Namespace(id.Namespace), nil
}

func getObject(ctx context.Context, client dynamic.ResourceInterface, name string) (*unstructured.Unstructured, error) {
	live, err := client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return live, err
}

// checkOwner refuses to change what somebody else has made.
func (a *applier) checkOwner(live *unstructured.Unstructured) error {
	owner := metav1.GetControllerOf(live)
	switch {
	case owner != nil && owner.UID == a.app.UID:
		return nil
	case owner != nil:
		return fmt.Errorf("belongs to %s %s and is left as it is", owner.Kind, owner.Name)
	case a.app.Annotations[names.AnnotationAdopt] == "true":
		return nil
	}
	return fmt.Errorf("exists already and is left as it is; the annotation %s=true on the application takes it over", names.AnnotationAdopt)
}

// checkDrift finds out whether somebody has changed the fields that the application sets, and corrects them if asked to.
func (a *applier) checkDrift(ctx context.Context, client dynamic.ResourceInterface, o render.Object, live *unstructured.Unstructured, digest string) error {
	a.mu.Lock()
	last, known := a.applied[live.GetUID()]
	a.mu.Unlock()
	correct := a.app.Annotations[names.AnnotationDrift] == "correct"
	if known && last.digest == digest && last.version == versionOf(live) && (!last.drifted || !correct) {
		if last.drifted {
			a.drifted = append(a.drifted, o.ID.String())
		}
		return nil
	}
	whole, err := getObject(ctx, client, o.ID.Name)
	if err != nil || whole == nil {
		return errors.Join(err, children.ErrUnread)
	}
	// With the version, because what somebody else writes in between, as the controller of Deployments does, would look like drift.
	body, err := a.body(o, digest, whole.GetResourceVersion())
	if err != nil {
		return err
	}
	tried, err := client.Patch(ctx, o.ID.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: fieldManager, Force: new(true), DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	drifted := !sameContent(tried, whole)
	if drifted && correct {
		since := time.Since(last.at)
		if !known || since >= correctEvery {
			return a.send(ctx, client, o, digest)
		}
		a.again(correctEvery - since)
	}
	a.remember(whole.GetUID(), appliedObject{digest: digest, version: versionOf(whole), drifted: drifted, at: last.at})
	if drifted {
		a.drifted = append(a.drifted, o.ID.String())
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

// isDrifted reports whether somebody has changed what the application sets: ready pods of such an object show nothing about the application.
func (c *Controller) isDrifted(live *unstructured.Unstructured) bool {
	if live == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.applied[live.GetUID()].drifted
}

func (a *applier) remember(uid types.UID, o appliedObject) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applied[uid] = o
}

// body returns an object as it is sent: with its digest, and the application as its controller. It is refused if the object has another version than
// the given one, "" for any.
func (a *applier) body(o render.Object, digest, version string) ([]byte, error) {
	sent := o.Content.DeepCopy()
	sent.SetResourceVersion(version)
	annotations := sent.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationDigest] = digest
	sent.SetAnnotations(annotations)
	sent.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(a.app, apps.GroupVersion().WithKind(apps.EdgeApplicationKind))})
	return sent.MarshalJSON()
}

func (a *applier) send(ctx context.Context, client dynamic.ResourceInterface, o render.Object, digest string) error {
	if err := a.confirm(ctx); err != nil {
		return err
	}
	body, err := a.body(o, digest, "")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	made, err := client.Patch(ctx, o.ID.Name, types.ApplyPatchType, body, metav1.PatchOptions{FieldManager: fieldManager, Force: new(true)})
	if err != nil {
		return err
	}
	a.remember(made.GetUID(), appliedObject{digest: digest, version: versionOf(made), at: time.Now()})
	return nil
}

// deleteObject deletes an object, if the application is its controller.
func (a *applier) deleteObject(ctx context.Context, id render.ID) error {
	client, err := a.clientOf(id)
	if children.IsUnavailable(err) {
		return nil // with a kind its objects are gone
	}
	if err != nil {
		return err
	}
	live, err := getObject(ctx, client, id.Name)
	if err != nil || live == nil || !metav1.IsControlledBy(live, a.app) {
		return err
	}
	if err := a.confirm(ctx); err != nil {
		return err
	}
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(live.GetUID())), PropagationPolicy: new(metav1.DeletePropagationBackground)}
	if err := client.Delete(ctx, id.Name, options); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
