// Package app holds frond app: what EdgeApplications make for which groups of gateways, and their rollouts.
package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/cmd/frond/kubeflags"
)

// NewCommand returns frond app.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "app", Short: "Show EdgeApplications, what they make, and their rollouts"}
	cmd.AddCommand(newStatus(), newRender(), newDiff(), newHistory(), newUndo(), newApprove(), newPause(), newResume())
	return cmd
}

// cluster reads and writes applications.
type cluster struct{ kubeflags.Flags }

// clients are those of one namespace.
type clients struct {
	namespace    string
	kube         kubernetes.Interface
	objects      dynamic.Interface
	applications dynamic.ResourceInterface
}

// in returns the applications of a namespace.
func (c clients) in(namespace string) dynamic.ResourceInterface {
	return c.objects.Resource(apps.GroupVersion().WithResource(apps.EdgeApplicationsResource)).Namespace(namespace)
}

func (c *cluster) connect() (clients, error) {
	cfg, err := c.RESTConfig()
	if err != nil {
		return clients{}, err
	}
	namespace, err := c.Namespace()
	if err != nil {
		return clients{}, err
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return clients{}, fmt.Errorf("reach the cluster: %w", err)
	}
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return clients{}, fmt.Errorf("reach the cluster: %w", err)
	}
	all := clients{namespace: namespace, kube: kube, objects: objects}
	all.applications = all.in(namespace)
	return all, nil
}

// errNoKind says that the cluster does not have the kind.
var errNoKind = errors.New("the cluster does not have the kind EdgeApplication: frond init installs it")

func explain(err error) error {
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) && apierrors.ReasonForError(err) == metav1.StatusReasonNotFound && !hasName(err) {
		return errNoKind
	}
	return err
}

// hasName reports whether an error is about an object, not about its kind.
func hasName(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != ""
}

func (c clients) get(ctx context.Context, name string) (*apps.EdgeApplication, error) {
	o, err := c.applications.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, explain(err)
	}
	app := &apps.EdgeApplication{}
	return app, decode(o.Object, app)
}

func decode(fields map[string]any, into any) error {
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, into); err != nil {
		return fmt.Errorf("understand %T: %w", into, err)
	}
	return nil
}
