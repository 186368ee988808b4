package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
)

// Options are the administrator's choices for a restore.
type Options struct {
	// DryRun only reports the planned changes.
	DryRun bool
	// Replace overwrites existing Secrets and ConfigMaps that differ, also newer ones.
	Replace bool
	// OtherCluster accepts a backup of another cluster.
	OtherCluster bool
}

// Action is the action on an object, done or, in a dry run, planned.
type Action string

// The actions.
const (
	Created   Action = "created"
	Replaced  Action = "replaced"
	Merged    Action = "merged"
	Kept      Action = "kept" // it differs from the backup
	Unchanged Action = "unchanged"
)

// Change is an object of the backup and the action on it.
type Change struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Action    Action `json:"action"`
}

// Report lists the changes, done or, in a dry run, planned.
type Report struct {
	Header
	// Objects are those of the backup.
	Objects []Change `json:"objects"`
	// Init are the objects that frond init then completed; empty in a dry run.
	Init     []install.Applied `json:"init,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
}

// Changed counts the objects that were written, or would be.
func (r Report) Changed() (n int) {
	for _, o := range r.Objects {
		if o.Action != Unchanged && o.Action != Kept {
			n++
		}
	}
	return n
}

// Restore writes the objects that a backup has and the cluster lacks: the keys, then the objects of frond init, then the identities of
// gateways. It may be interrupted at any point and run again.
func Restore(ctx context.Context, cfg *rest.Config, c Content, o Options, now time.Time) (Report, error) {
	r := Report{Header: c.Header, Objects: []Change{}}
	k, err := newClients(cfg)
	if err != nil {
		return r, err
	}
	if err := k.checkCluster(ctx, c, o); err != nil {
		return r, err
	}
	if err := c.checkKeys(now); err != nil {
		return r, fmt.Errorf("the backup is not whole: %w", err)
	}
	steps, err := k.planSteps(ctx, c, o)
	if err != nil {
		return r, err
	}
	if !o.DryRun {
		if err := k.ensureNamespace(ctx, c.Created); err != nil {
			return r, err
		}
	}
	for _, step := range steps {
		if step.write != nil && !o.DryRun {
			if err := k.applyObject(ctx, step.write); err != nil {
				return r, err
			}
		}
		r.Objects = append(r.Objects, step.Change)
	}
	if !o.DryRun {
		done, err := install.Init(ctx, k.config, install.Options{}, now)
		if err != nil {
			return r, fmt.Errorf("the keys are restored; complete them (frond init): %w", err)
		}
		r.Init, r.Warnings = done.Objects, done.Warnings
	}
	changes, err := k.restoreIdentities(ctx, c.Identities, o.DryRun)
	r.Objects = append(r.Objects, changes...)
	return r, err
}

// checkCluster refuses a restore that would give one cluster's gateways to another.
func (c clusterClients) checkCluster(ctx context.Context, saved Content, o Options) error {
	uid, err := clusterUID(ctx, c)
	if err != nil {
		return err
	}
	if uid != saved.ClusterUID && !o.OtherCluster {
		return fmt.Errorf("the backup is of the cluster %s, and this one is %s: see that the kubeconfig is the right one. "+
			"--other-cluster restores it here all the same, so that its gateways belong to this cluster", saved.ClusterUID, uid)
	}
	ns, err := c.kube.CoreV1().Namespaces().Get(ctx, names.Namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("read the namespace %s: %w", names.Namespace, err)
	case ns.DeletionTimestamp != nil:
		return fmt.Errorf("the namespace %s is still being deleted: wait until kubectl get namespace %s does not find it, and run this again", names.Namespace, names.Namespace)
	}
	return nil
}

// restoreStep is an object of the backup and, if it must be written, its applied form.
type restoreStep struct {
	Change
	write *unstructured.Unstructured
}

// planSteps compares the Secrets and ConfigMaps with those of the cluster.
func (c clusterClients) planSteps(ctx context.Context, saved Content, o Options) ([]restoreStep, error) {
	var steps []restoreStep
	restoresAuthority, foreign := false, ""
	for i := range saved.Secrets {
		want := &saved.Secrets[i]
		have, err := c.kube.CoreV1().Secrets(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read Secret %s: %w", want.Name, err)
		}
		s := restoreStep{Change: Change{Kind: "Secret", Namespace: want.Namespace, Name: want.Name}}
		s.Action = decideAction(err == nil, maps.EqualFunc(have.Data, want.Data, bytes.Equal), o.Replace)
		restoresAuthority = restoresAuthority || want.Name == install.FolderCA && s.Action == Created
		if s.Action == Kept && !bytes.Equal(have.Data[install.EntryBundle], want.Data[install.EntryBundle]) {
			foreign = want.Name
		}
		if s.write, err = toManifest(s.Change, want); err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	if restoresAuthority && foreign != "" {
		return nil, fmt.Errorf("the authority %s would be restored, and Secret %s in the cluster is of another one: the authority was replaced after this backup. "+
			"Look for a later backup; --replace restores all of this one, and gateways that know the later authority only must join again", saved.CAHash, foreign)
	}
	for i := range saved.ConfigMaps {
		want := &saved.ConfigMaps[i]
		have, err := c.kube.CoreV1().ConfigMaps(want.Namespace).Get(ctx, want.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read ConfigMap %s: %w", want.Name, err)
		}
		s := restoreStep{Change: Change{Kind: "ConfigMap", Namespace: want.Namespace, Name: want.Name}}
		s.Action = decideAction(err == nil, maps.Equal(have.Data, want.Data), o.Replace)
		if s.write, err = toManifest(s.Change, want); err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// decideAction returns the action on an object.
func decideAction(exists, same, replace bool) Action {
	switch {
	case !exists:
		return Created
	case same:
		return Unchanged
	case replace:
		return Replaced
	}
	return Kept
}

// toManifest returns the applied form of an object, nil if it is not written.
func toManifest(c Change, o runtime.Object) (*unstructured.Unstructured, error) {
	if c.Action != Created && c.Action != Replaced {
		return nil, nil //nolint:nilnil // nothing is written
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("encode %s %s: %w", c.Kind, c.Name, err)
	}
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	fields["apiVersion"], fields["kind"] = corev1.SchemeGroupVersion.String(), c.Kind
	return &unstructured.Unstructured{Object: fields}, nil
}

// applyObject writes with the field manager of frond init, which owns these fields: fields that it later removes must have no other owner.
func (c clusterClients) applyObject(ctx context.Context, o *unstructured.Unstructured) error {
	resource := corev1.SchemeGroupVersion.WithResource(map[string]string{"Secret": "secrets", "ConfigMap": "configmaps"}[o.GetKind()])
	options := metav1.ApplyOptions{FieldManager: names.ManagerInstall, Force: true}
	if _, err := c.objects.Resource(resource).Namespace(o.GetNamespace()).Apply(ctx, o.GetName(), o, options); err != nil {
		return fmt.Errorf("write %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

func (c clusterClients) ensureNamespace(ctx context.Context, saved time.Time) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: names.Namespace, Annotations: map[string]string{names.AnnotationLastBackup: saved.UTC().Format(time.RFC3339)},
	}}
	_, err := c.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{FieldManager: names.ManagerInstall})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make the namespace %s: %w", names.Namespace, err)
	}
	return nil
}

var errNotServed = errors.New("the kind NodeIdentity is not served yet")
