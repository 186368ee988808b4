package main

import (
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install"
)

func newNode() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "List the gateways that have joined and what they receive, and revoke one",
	}
	cmd.AddCommand(newNodeExposed(), newNodeList(), newNodeRevoke())
	return cmd
}

// identityClient returns a client of the cluster's NodeIdentities.
func (k *kube) identityClient() (dynamic.ResourceInterface, error) {
	client, err := k.dynamicClient()
	if err != nil {
		return nil, err
	}
	return client.Resource(identity.GroupVersionResource()), nil
}

// identityOf decodes a NodeIdentity.
func identityOf(o *unstructured.Unstructured) (n identity.NodeIdentity, err error) {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &n); err != nil {
		return n, fmt.Errorf("understand NodeIdentity %s: %w", o.GetName(), err)
	}
	return n, nil
}

// installError explains the error of a cluster that lacks the custom resource.
func installError(err error, doing string) error {
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return install.ErrNotInstalled
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}
