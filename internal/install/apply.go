package install

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/names"
)

// The actions on an object.
const (
	actionCreated    = "created"
	actionConfigured = "configured"
	actionUnchanged  = "unchanged"
)

// Applied is an object and the action on it, done or, in a dry run, planned.
type Applied struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Action is "created", "configured" or "unchanged".
	Action string `json:"action"`
}

// applier writes objects by server-side apply.
type applier struct {
	client dynamic.Interface
	dryRun bool
}

func (a applier) clientFor(o *unstructured.Unstructured) dynamic.ResourceInterface {
	all := a.client.Resource(resourceFor(o.GroupVersionKind()))
	if ns := o.GetNamespace(); ns != "" {
		return all.Namespace(ns)
	}
	return all
}

// applyObject applies the fields that o sets and leaves the others to their owners. A resourceVersion in o must still be the
// one in the cluster.
func (a applier) applyObject(ctx context.Context, o *unstructured.Unstructured) (Applied, error) {
	done, _, err := a.applyAndRead(ctx, o)
	return done, err
}

// applyAndRead is applyObject that also returns the object; nil where a dry run would create it.
func (a applier) applyAndRead(ctx context.Context, o *unstructured.Unstructured) (done Applied, now *unstructured.Unstructured, err error) {
	done = Applied{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
	old, err := a.clientFor(o).Get(ctx, o.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if done.Action = actionCreated; a.dryRun {
			return done, nil, nil
		}
	case err != nil:
		return done, nil, fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	options := metav1.ApplyOptions{FieldManager: names.ManagerInstall, Force: true}
	if a.dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	now, err = a.clientFor(o).Apply(ctx, o.GetName(), o, options)
	if err != nil {
		return done, nil, fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	if done.Action == "" {
		done.Action = actionUnchanged
		if !sameContent(old, now) {
			done.Action = actionConfigured
		}
	}
	return done, now, nil
}

// sameContent compares the fields that clients write: a dry run has no new resourceVersion to compare.
func sameContent(a, b *unstructured.Unstructured) bool {
	bare := func(o *unstructured.Unstructured) map[string]any {
		o = o.DeepCopy()
		o.SetManagedFields(nil)
		o.SetResourceVersion("")
		o.SetGeneration(0)
		unstructured.RemoveNestedField(o.Object, "status")
		return o.Object
	}
	return equality.Semantic.DeepEqual(bare(a), bare(b))
}

// reserveSecret creates a missing Secret without content, so that only one of two concurrent runs can fill it. o then has the
// resourceVersion at which it must be filled.
func (a applier) reserveSecret(ctx context.Context, o *unstructured.Unstructured) error {
	empty := o.DeepCopy()
	unstructured.RemoveNestedField(empty.Object, "data")
	made, err := a.clientFor(o).Create(ctx, empty, metav1.CreateOptions{FieldManager: names.ManagerInstall})
	if err != nil {
		return fmt.Errorf("create Secret %s: %w", o.GetName(), err)
	}
	o.SetResourceVersion(made.GetResourceVersion())
	return nil
}
