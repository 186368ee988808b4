// Package cleanup makes the objects that a run of frond loadtest starts with, and deletes all that a run has left in a cluster.
//
// It deletes what has the label of the run: Nodes, the namespace and the token. An identity is deleted if the Node of its name has the label,
// or if its key is one that the caller knows as its own. So nothing of another run, and no real gateway, is ever deleted.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install/identities"
	"github.com/frond-edge/frond/internal/install/jointoken"
)

const (
	// batch is how many objects are listed, and atOnce how many are deleted at a time.
	batch, atOnce = 500, 16
	// latePasses and latePause: cloudcore creates the Node of a gateway whose report it handles late, after the gateway has ended.
	latePasses, latePause = 10, 3 * time.Second
	// maxRun bounds a run's id: the name of a Node is also the value of a label, of 63 characters.
	maxRun = 48
)

// Run is a run's objects in a cluster.
type Run struct {
	id     string
	kube   kubernetes.Interface
	stored dynamic.ResourceInterface
}

// New returns the run with an id.
func New(id string, kube kubernetes.Interface, cfg *rest.Config) (*Run, error) {
	if faults := validation.IsDNS1123Label(id); len(faults) > 0 || len(id) > maxRun {
		return nil, fmt.Errorf("run %q: write at most %d lower-case letters, digits and hyphens", id, maxRun)
	}
	stored, err := identities.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	return &Run{id: id, kube: kube, stored: stored}, nil
}

// Namespace returns the name of the run's namespace.
func (r *Run) Namespace() string { return "loadtest-" + r.id }

// NodeName returns the name of the Node of a gateway.
func (r *Run) NodeName(index int) string { return fmt.Sprintf("lt-%s-%05d", r.id, index) }

// selector selects what has the run's label.
func (r *Run) selector() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: names.LabelLoadtestRun + "=" + r.id, Limit: batch}
}

// CreateNamespace creates the namespace.
func (r *Run) CreateNamespace(ctx context.Context) error {
	_, err := r.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: r.Namespace(), Labels: map[string]string{names.LabelLoadtestRun: r.id}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the namespace of the run: %w", err)
	}
	return nil
}

// CreateToken creates a token for any number of gateways.
func (r *Run) CreateToken(ctx context.Context, ttl time.Duration) (string, error) {
	token, secret, err := jointoken.New(jointoken.Options{TTL: ttl, Description: "frond loadtest " + r.id}, time.Now())
	if err != nil {
		return "", err
	}
	secret.Labels = map[string]string{names.LabelLoadtestRun: r.id}
	if _, err := r.kube.CoreV1().Secrets(secret.Namespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return "", fmt.Errorf("store the token: %w", err)
	}
	return token, nil
}

// Delete deletes all objects of the run. own are the keys of the run's gateways by the names of their Nodes, as far as the caller knows them.
// No gateway of the run may run any more.
func (r *Run) Delete(ctx context.Context, own map[string]string) error {
	secrets := r.kube.CoreV1().Secrets(identity.TokenNamespace)
	tokens := secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, r.selector()) // first: nothing may join any more
	return errors.Join(
		explain("delete the token", tokens),
		explain("delete the pods", r.deletePods(ctx)),
		explain("delete the identities", r.deleteOwn(ctx, own)),
		explain("delete the Nodes", r.deleteAllNodes(ctx)),
		explain("delete the namespace", r.deleteNamespace(ctx)),
	)
}

func explain(what string, err error) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// deletePods deletes the pods at once: no gateway will end them.
func (r *Run) deletePods(ctx context.Context) error {
	pods := r.kube.CoreV1().Pods(r.Namespace())
	for next := ""; ; {
		options := r.selector()
		options.Continue = next
		list, err := pods.List(ctx, options)
		if err != nil {
			return err
		}
		err = eachOf(ctx, list.Items, func(ctx context.Context, pod *corev1.Pod) error {
			return pods.Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0))
		})
		if next = list.Continue; err != nil || next == "" {
			return err
		}
	}
}

// eachOf calls do for each object, some at a time. An object that is gone is no error.
func eachOf[T any](ctx context.Context, objects []T, do func(context.Context, *T) error) error {
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range objects {
		group.Go(func() error {
			if err := do(gctx, &objects[i]); !apierrors.IsNotFound(err) {
				return err
			}
			return nil
		})
	}
	return group.Wait()
}

// deleteAllNodes deletes the Nodes with the label until none has come for a while.
func (r *Run) deleteAllNodes(ctx context.Context) error {
	for range latePasses {
		deleted, err := r.deleteNodes(ctx)
		if err != nil || deleted == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(latePause):
		}
	}
	return nil
}

// deleteNodes deletes the Nodes with the label, each after the identity of its name: without its Node, nothing would tell whose it is.
func (r *Run) deleteNodes(ctx context.Context) (deleted int, err error) {
	for next := ""; ; {
		options := r.selector()
		options.Continue = next
		list, err := r.kube.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return deleted, err
		}
		deleted += len(list.Items)
		err = eachOf(ctx, list.Items, func(ctx context.Context, node *corev1.Node) error {
			if err := r.deleteIdentity(ctx, node.Name); err != nil {
				return err
			}
			return r.kube.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))})
		})
		if next = list.Continue; err != nil || next == "" {
			return deleted, err
		}
	}
}

// deleteOwn deletes the identities with the keys of this process, also of gateways that never had a Node.
func (r *Run) deleteOwn(ctx context.Context, own map[string]string) error {
	nodes := make([]string, 0, len(own))
	for node := range own {
		nodes = append(nodes, node)
	}
	return eachOf(ctx, nodes, func(ctx context.Context, node *string) error {
		o, err := r.stored.Get(ctx, *node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		found, err := identities.Decode(o)
		if err != nil || found.Spec.Key != own[*node] {
			return err
		}
		return r.deleteIdentity(ctx, *node)
	})
}

// deleteIdentity deletes an identity, with the annotation that confirms it.
func (r *Run) deleteIdentity(ctx context.Context, node string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationConfirmDeletion, node)
	_, err := r.stored.Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err == nil {
		err = r.stored.Delete(ctx, node, metav1.DeleteOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// deleteNamespace deletes the namespace, if it has the label.
func (r *Run) deleteNamespace(ctx context.Context) error {
	namespace, err := r.kube.CoreV1().Namespaces().Get(ctx, r.Namespace(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if namespace.Labels[names.LabelLoadtestRun] != r.id {
		return fmt.Errorf("namespace %s is not of this run", namespace.Name)
	}
	return r.kube.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{})
}
