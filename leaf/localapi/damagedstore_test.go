package localapi_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// A store that lost objects to a bad disk returns 503 for every list until it has attached, and never a shorter list of
// pods. So a kubelet that starts on it deletes nothing: its informer sees all pods with the attach, and not one deletion.
func TestServer_DamagedStoreDeletesNoPod(t *testing.T) {
	image, pods := newStoreImage(t)
	for _, file := range []string{"1.blk", "index.db", "meta.inf", "meta.sum"} {
		for _, damage := range leaftest.Damages() {
			t.Run(file+"/"+damage.Name, func(t *testing.T) {
				t.Parallel()
				g := &gateway{t: t, dir: t.TempDir(), cloud: &fakeCloud{}, sent: &fakeOutbox{}}
				if err := os.CopyFS(g.dir, os.DirFS(image)); err != nil {
					t.Fatal(err)
				}
				for _, f := range leaftest.Files(t, g.dir) {
					if filepath.Base(f) == file {
						damage.Apply(t, filepath.Join(g.dir, f))
					}
				}
				g.start()
				whole := g.store.Cursor().StreamEpoch != ""
				if !whole {
					wantUnavailable(t, g.newClient(false))
				}
				h := &informerLog{}
				synced := h.startInformer(t, g.newClient(true))
				if whole {
					kit.Eventually(t, "informer synced with all pods, without the cloud", func() bool { return synced() && len(h.podNames()) == len(pods) })
				} else if synced() {
					t.Error("the informer has a list of a store that does not know its pods")
				}
				var messages []wire.Message
				for i, p := range pods {
					messages = append(messages, newMessage(t, p, uint64(i)+1))
				}
				if err := g.store.Replace(t.Context(), messages, "stream-1", uint64(len(pods))); err != nil {
					t.Fatal(err)
				}
				kit.Eventually(t, "informer synced", synced)
				kit.Eventually(t, "all pods are seen", func() bool { return len(h.podNames()) == len(pods) })
				if h.sawDeletion() {
					t.Error("the kubelet was told that a pod is gone")
				}
			})
		}
	}
}

// newStoreImage returns the folder of a gateway after a kill; its pods were created one after the other.
func newStoreImage(t *testing.T) (image string, pods []*corev1.Pod) {
	t.Helper()
	g := newGateway(t, true)
	for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
		p := newPod(name, "uid-"+name, "1")
		pods = append(pods, p)
		g.deliverObjects(p)
	}
	image = t.TempDir()
	if err := os.CopyFS(image, os.DirFS(g.dir)); err != nil {
		t.Fatal(err)
	}
	return image, pods
}

// wantUnavailable checks that lists fail and that a get of an unknown pod is a 503.
func wantUnavailable(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if l, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err == nil {
		t.Errorf("lists %d pods", len(l.Items))
	}
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if l, err := c.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); err == nil {
		t.Errorf("lists %d configmaps", len(l.Items))
	}
	if _, err := c.CoreV1().Pods("default").Get(t.Context(), "never-seen", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("get of an unknown pod: %v, want 503", err)
	}
}

// informerLog records the events of a kubelet's informer.
type informerLog struct {
	mu    sync.Mutex // guards all fields below
	added []string
	gone  bool
}

func (s *informerLog) startInformer(t *testing.T, c kubernetes.Interface) (synced func() bool) {
	t.Helper()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", gatewayNode))
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: lw, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.added = append(s.added, o.(*corev1.Pod).Name)
		},
		DeleteFunc: func(any) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.gone = true
		},
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { controller.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	return controller.HasSynced
}

func (s *informerLog) podNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(s.added)))
}

func (s *informerLog) sawDeletion() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}
