package backup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install/identities"
)

const (
	// maxParallel is the number of concurrent writes of identities: 100,000 take minutes, and the apiserver keeps capacity for other clients.
	maxParallel = 8
	// servedTimeout bounds the time until the apiserver serves a newly defined kind; 1 to 3 s are usual.
	servedTimeout  = time.Minute
	servedInterval = 200 * time.Millisecond
)

// restoreIdentities writes the identities of gateways, and returns the action on each.
func (c clusterClients) restoreIdentities(ctx context.Context, saved []identity.NodeIdentity, dryRun bool) ([]Change, error) {
	if !dryRun {
		if err := c.waitServed(ctx); err != nil {
			return nil, err
		}
	}
	changes := make([]Change, len(saved))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(maxParallel)
	for i := range saved {
		g.Go(func() error {
			changes[i] = Change{Kind: identity.Kind, Name: saved[i].Name}
			err := retry.OnError(retry.DefaultBackoff, isConflict, func() (err error) {
				changes[i].Action, err = c.restoreIdentity(gctx, saved[i], dryRun)
				return err
			})
			if err != nil {
				return fmt.Errorf("restore NodeIdentity %s: %w", saved[i].Name, err)
			}
			return nil
		})
	}
	return changes, g.Wait()
}

// isConflict reports a concurrent write of the same object, by cloudcore or a person.
func isConflict(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// waitServed waits until the apiserver serves the kind.
func (c clusterClients) waitServed(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, servedInterval, servedTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := c.identities.List(ctx, metav1.ListOptions{Limit: 1})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w after %s: run this again", errNotServed, servedTimeout)
	}
	if err != nil {
		return fmt.Errorf("list NodeIdentities: %w", err)
	}
	return nil
}

func (c clusterClients) restoreIdentity(ctx context.Context, saved identity.NodeIdentity, dryRun bool) (Action, error) {
	o, err := c.identities.Get(ctx, saved.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if dryRun {
			return Created, nil
		}
		return Created, c.writeIdentity(ctx, saved, c.createIdentity)
	}
	if err != nil {
		return "", err
	}
	have, err := identities.Decode(o)
	if err != nil {
		return "", err
	}
	merged := have
	merged.Spec = mergeIdentity(have.Spec, saved.Spec)
	switch {
	case equality.Semantic.DeepEqual(merged.Spec, have.Spec) && equality.Semantic.DeepEqual(saved.Spec, have.Spec):
		return Unchanged, nil
	case equality.Semantic.DeepEqual(merged.Spec, have.Spec):
		return Kept, nil
	case dryRun:
		return Merged, nil
	}
	return Merged, c.writeIdentity(ctx, merged, c.updateIdentity)
}

func (c clusterClients) writeIdentity(ctx context.Context, id identity.NodeIdentity, write func(context.Context, *unstructured.Unstructured) error) error {
	o, err := identities.Encode(id)
	if err != nil {
		return err
	}
	return write(ctx, o)
}

func (c clusterClients) createIdentity(ctx context.Context, o *unstructured.Unstructured) error {
	_, err := c.identities.Create(ctx, o, metav1.CreateOptions{FieldManager: names.ManagerInstall})
	return err
}

// updateIdentity returns a conflict if the object changed since it was read.
func (c clusterClients) updateIdentity(ctx context.Context, o *unstructured.Unstructured) error {
	_, err := c.identities.Update(ctx, o, metav1.UpdateOptions{FieldManager: names.ManagerInstall})
	return err
}
