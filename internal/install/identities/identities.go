// Package identities reads and writes the NodeIdentities of a cluster for commands. cloudcore has a client of its own.
package identities

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install"
)

// NewClient returns a client of the cluster's NodeIdentities.
func NewClient(cfg *rest.Config) (dynamic.ResourceInterface, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	return client.Resource(identity.GroupVersionResource()), nil
}

// List returns the identities of all gateways by name.
func List(ctx context.Context, cfg *rest.Config) ([]identity.NodeIdentity, error) {
	client, err := NewClient(cfg)
	if err != nil {
		return nil, err
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err := ExplainError(err, "list the identities"); err != nil {
		return nil, err
	}
	all := make([]identity.NodeIdentity, len(list.Items))
	for i := range list.Items {
		if all[i], err = Decode(&list.Items[i]); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b identity.NodeIdentity) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Decode returns a NodeIdentity as it is read from the cluster.
func Decode(o *unstructured.Unstructured) (n identity.NodeIdentity, err error) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &n); err != nil {
		return n, fmt.Errorf("understand NodeIdentity %s: %w", o.GetName(), err)
	}
	return n, nil
}

// Encode returns a NodeIdentity as it is written to the cluster.
func Encode(n identity.NodeIdentity) (*unstructured.Unstructured, error) {
	n.APIVersion, n.Kind = identity.GroupVersionResource().GroupVersion().String(), identity.Kind
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&n)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// ExplainError explains the error of a cluster that lacks the custom resource.
func ExplainError(err error, doing string) error {
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return install.ErrNotInstalled
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// The states of a gateway's key.
const (
	Valid = "valid"
	// Renewable is a key that has expired and may still be renewed by the gateway.
	Renewable = "renewable"
	Expired   = "expired"
	Revoked   = "revoked"
)

// StateOf returns the state of a gateway's key, which may be renewed for a window of time after it has expired.
func StateOf(spec identity.NodeIdentitySpec, now time.Time, window time.Duration) string {
	switch {
	case spec.RevokedAt != nil || spec.Key == "":
		return Revoked
	case now.Before(spec.Expires.Time):
		return Valid
	case now.Before(spec.Expires.Add(window)):
		return Renewable
	}
	return Expired
}
