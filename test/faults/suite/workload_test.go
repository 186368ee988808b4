package suite_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/test/faults"
)

const (
	// mapCount, secretCount and guestCount bound the objects of each kind that a node may have at once.
	mapCount, secretCount, guestCount = 14, 5, 2
	// stepTimeout bounds one request of the workload, as the apiserver may be paused.
	stepTimeout = 3 * time.Second
	// changeInterval is the workload's: about 15 changes a second over all nodes.
	changeInterval = 60 * time.Millisecond
)

// perfectLink is a link without a fault.
var perfectLink wan.Shape

// createAnchors creates the namespace and on each node a permanent pod, the anchor, which mounts all of the node's possible ConfigMaps and
// Secrets.
func (r *testCluster) createAnchors(ctx context.Context) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: faults.Namespace}}
	if _, err := r.kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for _, node := range nodes {
		for {
			_, err := r.kube.CoreV1().Pods(faults.Namespace).Create(ctx, anchorPod(node), metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) {
				break
			}
			if !apierrors.IsForbidden(err) { // the service account comes a moment after the namespace
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
			}
		}
	}
	return nil
}

// sleepPod returns an idle pod on a node.
func sleepPod(node, name string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: faults.Namespace},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: "localhost/frond/tools:dev", ImagePullPolicy: corev1.PullIfNotPresent, Command: []string{"sleep", "360000"},
			}},
		},
	}
}

func anchorPod(node string) *corev1.Pod {
	p := sleepPod(node, faults.Name(node, "anchor", 0))
	optional := true
	var sources []corev1.VolumeProjection
	for i := range mapCount {
		name := faults.Name(node, "map", i)
		sources = append(sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional, Items: []corev1.KeyToPath{{Key: "n", Path: name}},
		}})
	}
	for i := range secretCount {
		name := faults.Name(node, "secret", i)
		sources = append(sources, corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional, Items: []corev1.KeyToPath{{Key: "n", Path: name}},
		}})
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "all", MountPath: "/all"}}
	return p
}

// workload changes objects at random. Each change carries a higher number than the one before.
type workload struct {
	rig    *testCluster
	random *rand.Rand
	n      atomic.Int64 // changes made
	failed atomic.Int64 // changes that Kubernetes did not confirm
}

// run changes objects until ctx ends.
func (w *workload) run(ctx context.Context) error {
	ticker := time.NewTicker(changeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
		if err := w.makeChange(sctx); err != nil {
			w.failed.Add(1)
		}
		cancel()
	}
}

// createDeletedPods creates pods that are deleted and never recreated, until ctx ends: the workload soon recreates what it deletes, and
// only a tombstone that remains the last message is purged.
func (w *workload) createDeletedPods(ctx context.Context) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		node := nodes[i%len(nodes)]
		// Each pod is created, and deleted a few seconds later.
		for _, n := range []int{i, i - 2*len(nodes)} {
			if n < 0 {
				continue
			}
			sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stepTimeout)
			if err := w.changeObject(sctx, w.guestObject(node, faults.Name(node, "shed", n)), fateRemoved); err != nil {
				w.failed.Add(1)
			}
			cancel()
		}
	}
}

// fateRemoved selects deletion without recreation.
const fateRemoved = 10

// makeChange makes one change. If the answer to a change was lost, the next read of the object shows whether it happened.
func (w *workload) makeChange(ctx context.Context) error {
	node := nodes[w.random.IntN(len(nodes))]
	choice, fate := w.random.IntN(100), w.random.IntN(100)
	switch {
	case choice < 60:
		return w.changeObject(ctx, w.configMapObject(faults.Name(node, "map", w.random.IntN(mapCount))), fate)
	case choice < 85:
		return w.changeObject(ctx, w.secretObject(faults.Name(node, "secret", w.random.IntN(secretCount))), fate)
	default:
		return w.changeObject(ctx, w.guestObject(node, faults.Name(node, "guest", w.random.IntN(guestCount))), fate)
	}
}

// mutableObject is an object that the workload changes.
type mutableObject struct {
	get    func(ctx context.Context) (types.UID, error)
	create func(ctx context.Context) error
	update func(ctx context.Context) error
	remove func(ctx context.Context, options metav1.DeleteOptions) error
}

// changeObject creates a missing object. Of the present ones it deletes a fifth, half of which it recreates at once.
func (w *workload) changeObject(ctx context.Context, o mutableObject, fate int) error {
	uid, err := o.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return o.create(ctx)
	case err != nil:
		return err
	case fate >= 20:
		return o.update(ctx)
	}
	w.rig.deletions.RecordAsked(string(uid))
	if err := o.remove(ctx, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}); err != nil || fate >= 10 {
		return err
	}
	if err := o.create(ctx); !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil // a pod takes time to terminate
}

// nextData is the content of the next change: its number, and data of a size between nothing and 40 KB.
func (w *workload) nextData() map[string]string {
	size := w.random.IntN(400)
	if w.random.IntN(10) == 0 {
		size *= 100
	}
	return map[string]string{"n": strconv.FormatInt(w.n.Add(1), 10), "pad": strings.Repeat("x", size)}
}

func (w *workload) configMapObject(name string) mutableObject {
	api := w.rig.kube.CoreV1().ConfigMaps(faults.Namespace)
	return mutableObject{
		get: func(ctx context.Context) (types.UID, error) {
			o, err := api.Get(ctx, name, metav1.GetOptions{})
			return o.GetUID(), err
		},
		create: func(ctx context.Context) error {
			_, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: w.nextData()}, metav1.CreateOptions{})
			return err
		},
		update: func(ctx context.Context) error {
			_, err := api.Patch(ctx, name, types.MergePatchType, w.dataPatch("data"), metav1.PatchOptions{})
			return err
		},
		remove: func(ctx context.Context, options metav1.DeleteOptions) error { return api.Delete(ctx, name, options) },
	}
}

func (w *workload) secretObject(name string) mutableObject {
	api := w.rig.kube.CoreV1().Secrets(faults.Namespace)
	return mutableObject{
		get: func(ctx context.Context) (types.UID, error) {
			o, err := api.Get(ctx, name, metav1.GetOptions{})
			return o.GetUID(), err
		},
		create: func(ctx context.Context) error {
			_, err := api.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: w.nextData()}, metav1.CreateOptions{})
			return err
		},
		update: func(ctx context.Context) error {
			_, err := api.Patch(ctx, name, types.MergePatchType, w.dataPatch("stringData"), metav1.PatchOptions{})
			return err
		},
		remove: func(ctx context.Context, options metav1.DeleteOptions) error { return api.Delete(ctx, name, options) },
	}
}

// guestObject is a pod that is created and deleted; a change sets a label.
func (w *workload) guestObject(node, name string) mutableObject {
	api := w.rig.kube.CoreV1().Pods(faults.Namespace)
	return mutableObject{
		get: func(ctx context.Context) (types.UID, error) {
			o, err := api.Get(ctx, name, metav1.GetOptions{})
			return o.GetUID(), err
		},
		create: func(ctx context.Context) error {
			_, err := api.Create(ctx, sleepPod(node, name), metav1.CreateOptions{})
			return err
		},
		update: func(ctx context.Context) error {
			_, err := api.Patch(ctx, name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"n":"%d"}}}`, w.n.Add(1)), metav1.PatchOptions{})
			return err
		},
		remove: func(ctx context.Context, options metav1.DeleteOptions) error { return api.Delete(ctx, name, options) },
	}
}

func (w *workload) dataPatch(field string) []byte {
	data := w.nextData()
	return fmt.Appendf(nil, `{%q:{"n":%q,"pad":%q}}`, field, data["n"], data["pad"])
}
