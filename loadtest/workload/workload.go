// Package workload writes the ConfigMaps and the pods of a load test to Kubernetes, in a namespace of their own.
//
// It waits for pods, by a watch; deliveries are loadtest/acks' part.
package workload

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest/poll"
)

const (
	// Namespace holds all objects of scenarios.
	Namespace = "loadtest"
	// Writers is the number of clients that write to the apiserver concurrently.
	Writers = 32
	// payloadBytes is the size of one ConfigMap's content, the same as in the peer's measurement.
	payloadBytes = 512
	// rootCA is the ConfigMap that each namespace has.
	rootCA = "kube-root-ca.crt"
)

// Names returns prefix-0000 and so on.
func Names(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return list
}

// ForEach calls do for each element of a list, at most Writers times at once.
func ForEach[T any](ctx context.Context, list []T, do func(context.Context, int, T) error) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(Writers)
	for i, element := range list {
		g.Go(func() error { return do(gctx, i, element) })
	}
	return g.Wait()
}

// Versions are the versions that the apiserver gave to objects.
type Versions map[wire.Key]string

// Client writes to one cluster.
type Client struct {
	kube kubernetes.Interface
	rand *rand.Rand // makes the contents of objects
}

// New creates the namespace, which goes with the cluster, and waits for the service account that pods need.
func New(ctx context.Context, kube kubernetes.Interface, seed uint64) (*Client, error) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if _, err := kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("make namespace: %w", err)
	}
	err := poll.Until(ctx, "the service account of the namespace", func(ctx context.Context) (bool, error) {
		_, err := kube.CoreV1().ServiceAccounts(Namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
	return &Client{kube: kube, rand: rand.New(rand.NewPCG(seed, seed))}, err
}

// CreateConfigMaps creates ConfigMaps with unique content concurrently.
func (c *Client) CreateConfigMaps(ctx context.Context, names []string) (Versions, error) {
	return c.putAll(ctx, names, func(ctx context.Context, cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
		return c.kube.CoreV1().ConfigMaps(Namespace).Create(ctx, cm, metav1.CreateOptions{})
	})
}

// UpdateConfigMaps gives ConfigMaps other content concurrently.
func (c *Client) UpdateConfigMaps(ctx context.Context, names []string) (Versions, error) {
	return c.putAll(ctx, names, func(ctx context.Context, cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
		return c.kube.CoreV1().ConfigMaps(Namespace).Update(ctx, cm, metav1.UpdateOptions{})
	})
}

type writeFunc func(context.Context, *corev1.ConfigMap) (*corev1.ConfigMap, error)

func (c *Client) putAll(ctx context.Context, names []string, write writeFunc) (Versions, error) {
	list := make([]*corev1.ConfigMap, len(names))
	for i, name := range names {
		content := make([]byte, payloadBytes/2)
		for i := range content {
			content[i] = byte(c.rand.Uint32())
		}
		list[i] = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
			Data:       map[string]string{"content": hex.EncodeToString(content)},
		}
	}
	err := ForEach(ctx, list, func(ctx context.Context, i int, cm *corev1.ConfigMap) (err error) {
		if list[i], err = write(ctx, cm); err != nil {
			return fmt.Errorf("write ConfigMap %s: %w", cm.Name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	versions := make(Versions, len(list))
	for _, cm := range list {
		versions[wire.Key{Resource: "configmaps", Namespace: Namespace, Name: cm.Name}] = cm.ResourceVersion
	}
	return versions, nil
}

// PausePod returns a pod bound to a node that mounts ConfigMaps, all of them optional.
func PausePod(name, node string, configMaps []string) *corev1.Pod {
	optional, no, grace := true, false, int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "pause", Image: toolchain.ImagePause, ImagePullPolicy: corev1.PullIfNotPresent}},
		},
	}
	if len(configMaps) == 0 {
		return p
	}
	sources := make([]corev1.VolumeProjection, len(configMaps))
	for i, cm := range configMaps {
		sources[i].ConfigMap = &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: cm}, Optional: &optional,
			Items: []corev1.KeyToPath{{Key: "content", Path: cm}},
		}
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "configs", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "configs", MountPath: "/configs", ReadOnly: true}}
	return p
}

// CreatePods creates pods concurrently.
func (c *Client) CreatePods(ctx context.Context, pods []*corev1.Pod) error {
	return ForEach(ctx, pods, func(ctx context.Context, _ int, p *corev1.Pod) error {
		if _, err := c.kube.CoreV1().Pods(Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make pod %s: %w", p.Name, err)
		}
		return nil
	})
}

// LaunchPods creates pods and waits until a watch of the API shows each Running. The watch is open before the interval begins.
func (c *Client) LaunchPods(ctx context.Context, pods ...*corev1.Pod) (began, ran time.Time, err error) {
	ctx, cancel := poll.WithTimeout(ctx)
	defer cancel()
	seen, err := c.kube.CoreV1().Pods(Namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return began, ran, fmt.Errorf("watch pods: %w", err)
	}
	defer seen.Stop()
	left := map[string]bool{}
	for _, p := range pods {
		left[p.Name] = true
	}
	began = time.Now()
	if err := c.CreatePods(ctx, pods); err != nil {
		return began, ran, err
	}
	for event := range seen.ResultChan() {
		p, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type == watch.Deleted || p.Status.Phase != corev1.PodRunning {
			continue
		}
		if delete(left, p.Name); len(left) == 0 {
			return began, time.Now(), nil
		}
	}
	return began, ran, errors.Join(fmt.Errorf("pods %q were not seen to run", slices.Sorted(maps.Keys(left))), context.Cause(ctx))
}

// DeletePods deletes all pods of scenarios and waits until they are gone.
func (c *Client) DeletePods(ctx context.Context) error {
	pods := c.kube.CoreV1().Pods(Namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete pods: %w", err)
	}
	return poll.Until(ctx, "the pods are gone", func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
}

// DeleteConfigMaps deletes all ConfigMaps of scenarios.
func (c *Client) DeleteConfigMaps(ctx context.Context) error {
	configMaps := c.kube.CoreV1().ConfigMaps(Namespace)
	list, err := configMaps.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name!=" + rootCA})
	if err != nil {
		return fmt.Errorf("list ConfigMaps: %w", err)
	}
	return ForEach(ctx, list.Items, func(ctx context.Context, _ int, cm corev1.ConfigMap) error {
		return ignoreNotFound(configMaps.Delete(ctx, cm.Name, metav1.DeleteOptions{}))
	})
}

// Owns reports whether an object is a ConfigMap of scenarios.
func Owns(key wire.Key) bool {
	return key.Resource == "configmaps" && key.Namespace == Namespace && key.Name != rootCA
}

// ContainerRuns identifies the present run of each container, as Kubernetes reports it.
func (c *Client) ContainerRuns(ctx context.Context) (sets.Set[string], error) {
	list, err := c.kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	runs := sets.New[string]()
	for i := range list.Items {
		p := &list.Items[i]
		for _, c := range p.Status.ContainerStatuses {
			runs.Insert(fmt.Sprint(p.Name, c.Name, p.UID, c.ContainerID, c.RestartCount))
		}
	}
	return runs, nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
