// Package taskstore keeps the NodeTasks of the cluster in memory, and writes them. Where the kind does not exist it is empty, never synced, and asks again.
package taskstore

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
)

const (
	requestTimeout = 10 * time.Second
	byJob          = "job"
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{jobs.Group}, Resources: []string{jobs.NodeTasksResource}, Verbs: []string{"get", "list", "watch", "create", "delete"}},
		{APIGroups: []string{jobs.Group}, Resources: []string{jobs.NodeTasksResource + "/status"}, Verbs: []string{"patch"}},
	}
}

// NewClient returns a client of one group of kinds.
func NewClient(config *rest.Config, version schema.GroupVersion, register func(*runtime.Scheme) error) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := register(scheme); err != nil {
		return nil, fmt.Errorf("register %s: %w", version, err)
	}
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion, config.ContentType = "/apis", &version, runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", version, err)
	}
	return client, nil
}

// NewInformer returns an informer of all objects of a resource. It is quiet while the resource does not exist.
func NewInformer(client rest.Interface, resource string, kind runtime.Object, indexers toolscache.Indexers) (toolscache.SharedIndexInformer, error) {
	informer := toolscache.NewSharedIndexInformer(toolscache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything()), kind, 0, indexers)
	if err := informer.SetTransform(stripFields); err != nil {
		return nil, fmt.Errorf("follow %s: %w", resource, err)
	}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *toolscache.Reflector, err error) {
		if !apierrors.IsNotFound(err) {
			toolscache.DefaultWatchErrorHandler(ctx, r, err)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", resource, err)
	}
	return informer, nil
}

func stripFields(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return object, nil
}

// Store has the NodeTasks. Its methods may be called concurrently; what they return from memory must not be changed.
type Store struct {
	client   rest.Interface
	informer toolscache.SharedIndexInformer
}

// New returns a Store.
func New(config *rest.Config) (*Store, error) {
	client, err := NewClient(config, jobs.GroupVersion(), jobs.AddToScheme)
	if err != nil {
		return nil, err
	}
	informer, err := NewInformer(client, jobs.NodeTasksResource, &jobs.NodeTask{}, toolscache.Indexers{byJob: func(o any) ([]string, error) {
		task, ok := o.(*jobs.NodeTask)
		if !ok {
			return nil, nil
		}
		return []string{jobIndex(task.Spec.Job.Kind, task.Spec.Job.Name)}, nil
	}})
	return &Store{client, informer}, err
}

func jobIndex(kind, name string) string { return kind + "/" + name }

// Start keeps the tasks in memory until ctx ends and then returns nil.
func (s *Store) Start(ctx context.Context) error {
	s.informer.RunWithContext(ctx)
	return nil
}

// Synced reports whether all tasks were read.
func (s *Store) Synced() bool { return s.informer.HasSynced() }

// Follow calls changed for each task that comes, changes or goes, until ctx of Start ends.
func (s *Store) Follow(changed func(*jobs.NodeTask)) error {
	if _, err := s.informer.AddEventHandler(controllers.TypedHandler(changed, changed)); err != nil {
		return fmt.Errorf("follow tasks: %w", err)
	}
	return nil
}

// OfJob returns the tasks of the jobs of a name, of each UID.
func (s *Store) OfJob(kind, name string) ([]*jobs.NodeTask, error) {
	found, err := s.informer.GetIndexer().ByIndex(byJob, jobIndex(kind, name))
	if err != nil {
		return nil, fmt.Errorf("tasks of %s %s: %w", kind, name, err)
	}
	var all []*jobs.NodeTask
	for _, o := range found {
		if task, ok := o.(*jobs.NodeTask); ok {
			all = append(all, task)
		}
	}
	return all, nil
}

// Get returns a task from memory.
func (s *Store) Get(name string) (*jobs.NodeTask, bool) {
	o, exists, err := s.informer.GetStore().GetByKey(name)
	task, ok := o.(*jobs.NodeTask)
	return task, err == nil && exists && ok
}

// Read returns a task from the apiserver, with its errors.
func (s *Store) Read(ctx context.Context, name string) (*jobs.NodeTask, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	task := &jobs.NodeTask{}
	err := s.client.Get().Resource(jobs.NodeTasksResource).Name(name).Do(ctx).Into(task)
	return task, err
}

// Create creates a task. One that exists is no error.
func (s *Store) Create(ctx context.Context, task *jobs.NodeTask) error {
	task.TypeMeta = metav1.TypeMeta{APIVersion: jobs.GroupVersion().String(), Kind: jobs.NodeTaskKind}
	body, err := json.Marshal(task)
	if err != nil {
		return fmt.Errorf("encode task: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = s.client.Post().Resource(jobs.NodeTasksResource).Param("fieldManager", names.ManagerCloudcore).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create task for node %s: %w", task.Spec.NodeName, err)
	}
	return nil
}

// Delete deletes a task, unless another one has its name. One that is gone is no error.
func (s *Store) Delete(ctx context.Context, task *jobs.NodeTask) error {
	options, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: &metav1.Preconditions{UID: &task.UID},
	})
	if err != nil {
		return fmt.Errorf("encode options: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = s.client.Delete().Resource(jobs.NodeTasksResource).Name(task.Name).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(options).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete task of node %s: %w", task.Spec.NodeName, err)
	}
	return nil
}

// SetStatus replaces the status of the version of a task that was read. It returns the apiserver's error as it is.
func (s *Store) SetStatus(ctx context.Context, task *jobs.NodeTask, status jobs.NodeTaskStatus) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	body, err := json.Marshal([]operation{
		{"replace", "/metadata/resourceVersion", task.ResourceVersion}, {"add", "/status", status},
	})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return s.client.Patch(types.JSONPatchType).Resource(jobs.NodeTasksResource).Name(task.Name).SubResource("status").
		Param("fieldManager", names.ManagerCloudcore).Body(body).Do(ctx).Error()
}
