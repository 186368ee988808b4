package check

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
)

// pageSize bounds a page of a list, so that a fleet of any size is read in answers of some megabytes.
const pageSize = 500

// Cluster reads a cluster for checks, each source once.
type Cluster struct {
	config *rest.Config
	client kubernetes.Interface
	now    func() time.Time

	nodes func() ([]corev1.Node, error)
	pods  func() ([]corev1.Pod, error) // of Frond's namespace
}

// NewCluster returns a reader whose sources are read within ctx.
func NewCluster(ctx context.Context, config *rest.Config) (*Cluster, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("reach the cluster: %w", err)
	}
	c := &Cluster{config: config, client: client, now: time.Now}
	c.nodes = sync.OnceValues(func() ([]corev1.Node, error) { return c.listNodes(ctx) })
	c.pods = sync.OnceValues(func() ([]corev1.Pod, error) {
		list, err := client.CoreV1().Pods(names.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list the pods of %s: %w", names.Namespace, err)
		}
		return list.Items, nil
	})
	return c, nil
}

func (c *Cluster) listNodes(ctx context.Context) (all []corev1.Node, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the Nodes: %w", err)
		}
		all = append(all, page.Items...)
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

// version returns the API server's version.
func (c *Cluster) version() (string, error) {
	v, err := c.client.Discovery().ServerVersion()
	if err != nil {
		return "", fmt.Errorf("read the version of the cluster: %w", err)
	}
	return v.GitVersion, nil
}

// initReport returns what frond init would do.
func (c *Cluster) initReport(ctx context.Context) (install.Report, error) {
	if _, err := install.ReadSettings(ctx, c.client); err != nil {
		return install.Report{}, err
	}
	return install.Init(ctx, c.config, install.Options{DryRun: true}, c.now())
}

// workloads returns the objects that run the hub and cloudcore; nil for one that does not exist.
func (c *Cluster) workloads(ctx context.Context) (hub *appsv1.StatefulSet, cloudcore *appsv1.Deployment, err error) {
	hub, err = c.client.AppsV1().StatefulSets(names.Namespace).Get(ctx, hubName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		hub, err = nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read StatefulSet %s: %w", hubName, err)
	}
	cloudcore, err = c.client.AppsV1().Deployments(names.Namespace).Get(ctx, cloudcoreName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		cloudcore, err = nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read Deployment %s: %w", cloudcoreName, err)
	}
	return hub, cloudcore, nil
}

// daemonPods returns the pods of DaemonSets on Nodes.
func (c *Cluster) daemonPods(ctx context.Context, nodes map[string]bool) (all []corev1.Pod, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.client.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list the pods: %w", err)
		}
		for i := range page.Items {
			if p := &page.Items[i]; nodes[p.Spec.NodeName] && daemonSetOf(p) != "" {
				all = append(all, *p)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

func (c *Cluster) storageClasses(ctx context.Context) ([]storagev1.StorageClass, error) {
	list, err := c.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the StorageClasses: %w", err)
	}
	return list.Items, nil
}

// refused returns those of some rights that the user does not have.
func (c *Cluster) refused(ctx context.Context, rights []right) (missing []string, err error) {
	for _, r := range rights {
		review, err := c.client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r.verb, Group: r.group, Resource: r.resource, Namespace: r.namespace,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask for your rights: %w", err)
		}
		if !review.Status.Allowed {
			missing = append(missing, r.String())
		}
	}
	return missing, nil
}

// hasDeployment reports whether a Deployment exists.
func (c *Cluster) hasDeployment(ctx context.Context, namespace, name string) (bool, error) {
	_, err := c.client.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read Deployment %s/%s: %w", namespace, name, err)
	}
	return true, nil
}
