package loadtest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest/poll"
)

// payloadBytes is the size of one ConfigMap's content, the same as in the peer's measurement.
const payloadBytes = 512

func configMapKey(name string) wire.Key {
	return wire.Key{Resource: "configmaps", Namespace: namespace, Name: name}
}

func numberedNames(prefix string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return list
}

// configMap returns a ConfigMap with unique content.
func (w *Environment) configMap(name string) *corev1.ConfigMap {
	content := make([]byte, payloadBytes/2)
	for i := range content {
		content[i] = byte(w.rand.Uint32())
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Data:       map[string]string{"content": hex.EncodeToString(content)},
	}
}

// writeFunc writes a ConfigMap to the apiserver: create or update.
type writeFunc func(ctx context.Context, cm *corev1.ConfigMap) (*corev1.ConfigMap, error)

func (w *Environment) createConfigMap(ctx context.Context, cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	return w.kube.CoreV1().ConfigMaps(namespace).Create(ctx, cm, metav1.CreateOptions{})
}

func (w *Environment) updateConfigMap(ctx context.Context, cm *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	return w.kube.CoreV1().ConfigMaps(namespace).Update(ctx, cm, metav1.UpdateOptions{})
}

// putAll writes ConfigMaps concurrently and returns the version of each.
func (w *Environment) putAll(ctx context.Context, how writeFunc, list []string) (map[wire.Key]string, error) {
	contents := make([]*corev1.ConfigMap, len(list))
	for i, name := range list {
		contents[i] = w.configMap(name)
	}
	var mu sync.Mutex
	versions := make(map[wire.Key]string, len(list))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for _, cm := range contents {
		g.Go(func() error {
			stored, err := how(gctx, cm)
			if err != nil {
				return fmt.Errorf("write ConfigMap %s: %w", cm.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			versions[configMapKey(cm.Name)] = stored.ResourceVersion
			return nil
		})
	}
	return versions, g.Wait()
}

// pausePod returns a pod bound to a node that mounts ConfigMaps, all of them optional.
func pausePod(name, node string, configMaps []string) *corev1.Pod {
	optional, no, grace := true, false, int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{"app": name}},
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

// launchPods creates pods and waits until all run.
func (w *Environment) launchPods(ctx context.Context, pods ...*corev1.Pod) error {
	for _, p := range pods {
		if _, err := w.kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make pod %s: %w", p.Name, err)
		}
	}
	return poll.Until(ctx, fmt.Sprintf("%d pods run", len(pods)), func(ctx context.Context) (bool, error) {
		list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		running := map[string]bool{}
		for i := range list.Items {
			running[list.Items[i].Name] = list.Items[i].Status.Phase == corev1.PodRunning
		}
		for _, p := range pods {
			if !running[p.Name] {
				return false, nil
			}
		}
		return true, nil
	})
}

// bindPods creates one pod on each node concurrently.
func (w *Environment) bindPods(ctx context.Context, name string, nodes, configMaps []string) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, node := range nodes {
		g.Go(func() error {
			p := pausePod(name+"-"+node, node, configMaps)
			if _, err := w.kube.CoreV1().Pods(namespace).Create(gctx, p, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("make pod %s: %w", p.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// awaitRunning waits until n pods run.
func (w *Environment) awaitRunning(ctx context.Context, n int) error {
	return poll.Until(ctx, "the pods run", func(ctx context.Context) (bool, error) {
		list, err := w.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		return err == nil && len(list.Items) == n, err
	})
}

// deletePods deletes all pods of scenarios and waits until they are gone.
func (w *Environment) deletePods(ctx context.Context) error {
	pods := w.kube.CoreV1().Pods(namespace)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete pods: %w", err)
	}
	return poll.Until(ctx, "the pods are gone", func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
}

// deleteConfigMaps deletes all ConfigMaps of scenarios.
func (w *Environment) deleteConfigMaps(ctx context.Context) error {
	configMaps := w.kube.CoreV1().ConfigMaps(namespace)
	list, err := configMaps.List(ctx, metav1.ListOptions{FieldSelector: "metadata.name!=" + rootCA})
	if err != nil {
		return fmt.Errorf("list ConfigMaps: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for i := range list.Items {
		g.Go(func() error {
			return ignoreNotFound(configMaps.Delete(gctx, list.Items[i].Name, metav1.DeleteOptions{}))
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("delete ConfigMaps: %w", err)
	}
	return nil
}

// awaitReleasedObjects waits until the stream of desired state has tombstones for all ConfigMaps of scenarios that no pod needs.
func (w *Environment) awaitReleasedObjects(ctx context.Context) error {
	return poll.Until(ctx, "the nodes gave up what they no longer need", func(ctx context.Context) (bool, error) {
		for _, node := range w.edgeNames() {
			held, err := w.publisher.Held(ctx, node)
			if err != nil {
				return false, nil //nolint:nilerr // a busy hub does not answer in time: it is asked again
			}
			for key, m := range held {
				if m.Op != wire.Delete && key.Resource == "configmaps" && key.Namespace == namespace && key.Name != rootCA {
					return false, nil
				}
			}
		}
		return true, nil
	})
}

// rootCA is the ConfigMap that each namespace has.
const rootCA = "kube-root-ca.crt"

// awaitAcks waits until every node has acked these versions of these objects and returns the time of the last ack. It first counts the
// acks received since dropPending, so that it sends the hub no other request while the hub is busy.
func (w *Environment) awaitAcks(ctx context.Context, nodes []string, versions map[wire.Key]string) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, poll.Timeout, fmt.Errorf("not within %s", poll.Timeout))
	defer cancel()
	at := make(map[string]map[uint64]time.Time, len(nodes))
	for _, node := range nodes {
		at[node] = make(map[uint64]time.Time, len(versions))
	}
	for heard, want := 0, len(nodes)*len(versions); ; want++ { // more acks than objects: others were among them
		for heard < want {
			got, err := w.acks.nextAck(ctx)
			if err != nil {
				return time.Time{}, fmt.Errorf("%d of %d acks: %w", heard, want, errors.Join(err, context.Cause(ctx)))
			}
			if seen := at[got.node]; seen != nil {
				if _, again := seen[got.sequence]; !again {
					seen[got.sequence] = got.at
					heard++
				}
			}
		}
		last, missing, err := w.lastAck(ctx, at, versions)
		if err != nil || missing == 0 {
			return last, err
		}
		want = heard + missing - 1
	}
}

// lastAck compares acks with the stream: it returns the number of wanted versions without an ack, and the time of the last ack.
func (w *Environment) lastAck(ctx context.Context, at map[string]map[uint64]time.Time, versions map[wire.Key]string) (last time.Time, missing int, err error) {
	for node, seen := range at {
		held, err := w.publisher.Held(ctx, node)
		if err != nil {
			return last, 0, err
		}
		for key, version := range versions {
			m := held[key]
			when, acked := seen[m.Sequence]
			if !acked || m.Op != wire.Apply || m.Version != version {
				missing++
				continue
			}
			if when.After(last) {
				last = when
			}
		}
	}
	return last, missing, nil
}
