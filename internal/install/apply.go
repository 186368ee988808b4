package install

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// FieldOwner is by whom Kubernetes says that what is made here was written.
const FieldOwner = "frond-init"

// What was done to an object.
const (
	created    = "created"
	configured = "configured"
	unchanged  = "unchanged"
)

// Applied is an object and what was done to it, or would be.
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
	dry    bool
}

func (a applier) at(o *unstructured.Unstructured) dynamic.ResourceInterface {
	all := a.client.Resource(resource(o.GroupVersionKind()))
	if ns := o.GetNamespace(); ns != "" {
		return all.Namespace(ns)
	}
	return all
}

// apply makes the object be like o in what o says, and leaves the rest of it to others. A resourceVersion in o must still be the
// one in the cluster.
func (a applier) apply(ctx context.Context, o *unstructured.Unstructured) (Applied, error) {
	done, _, err := a.applied(ctx, o)
	return done, err
}

// applied is apply that returns the object, too; nil where a dry run would make it.
func (a applier) applied(ctx context.Context, o *unstructured.Unstructured) (done Applied, now *unstructured.Unstructured, err error) {
	done = Applied{Kind: o.GetKind(), Namespace: o.GetNamespace(), Name: o.GetName()}
	old, err := a.at(o).Get(ctx, o.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if done.Action = created; a.dry {
			return done, nil, nil
		}
	case err != nil:
		return done, nil, fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	options := metav1.ApplyOptions{FieldManager: FieldOwner, Force: true}
	if a.dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	now, err = a.at(o).Apply(ctx, o.GetName(), o, options)
	if err != nil {
		return done, nil, fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	if done.Action == "" {
		done.Action = unchanged
		if !same(old, now) {
			done.Action = configured
		}
	}
	return done, now, nil
}

// same compares what people write: a dry run has no new resourceVersion to compare.
func same(a, b *unstructured.Unstructured) bool {
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

// reserve makes a Secret without content where there is none, so that of two that fill it at once only one can. It returns the
// resourceVersion that must still hold when it is filled.
func (a applier) reserve(ctx context.Context, o *unstructured.Unstructured) error {
	empty := o.DeepCopy()
	unstructured.RemoveNestedField(empty.Object, "data")
	made, err := a.at(o).Create(ctx, empty, metav1.CreateOptions{FieldManager: FieldOwner})
	if err != nil {
		return fmt.Errorf("create Secret %s: %w", o.GetName(), err)
	}
	o.SetResourceVersion(made.GetResourceVersion())
	return nil
}
