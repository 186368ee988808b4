package localapi_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/wire"
)

// informerOf runs a pod informer as the kubelet does, and returns its store.
func informerOf(t *testing.T, c kubernetes.Interface) cache.Store {
	t.Helper()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", node))
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: lw, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { controller.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	eventually(t, "informer synced", controller.HasSynced)
	return store
}

func names(s cache.Store) []string {
	keys := s.ListKeys()
	slices.Sort(keys)
	return keys
}

func TestInformerFollows(t *testing.T) {
	for name, protobuf := range encodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, true)
			stranger := pod("stranger", "u9", "9")
			stranger.Spec.NodeName = "other"
			g.deliver(pod("a", "u1", "1"), stranger)
			s := informerOf(t, g.client(protobuf))
			if got := names(s); !slices.Equal(got, []string{"default/a"}) {
				t.Fatalf("first list: %v", got)
			}
			g.deliver(pod("b", "u2", "2"))
			eventually(t, "b added", func() bool { return slices.Equal(names(s), []string{"default/a", "default/b"}) })
			changed := pod("b", "u2", "3")
			changed.Labels["new"] = "yes"
			g.deliver(changed)
			eventually(t, "b changed", func() bool {
				o, ok, _ := s.GetByKey("default/b")
				return ok && o.(*corev1.Pod).Labels["new"] == "yes"
			})
			g.tombstone(pod("a", "u1", "4"))
			eventually(t, "a deleted", func() bool { return slices.Equal(names(s), []string{"default/b"}) })
			// Moving out of the selector is a deletion for the watcher.
			changed.Spec.NodeName = "other"
			g.deliver(changed)
			eventually(t, "b left", func() bool { return len(names(s)) == 0 })
		})
	}
}

// TestInformerWaitsForTheFirstAttach: an empty list before the store knows anything would make a kubelet kill its pods.
func TestInformerWaitsForTheFirstAttach(t *testing.T) {
	g := newGateway(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if l, err := g.client(false).CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err == nil {
		t.Fatalf("a store that never attached lists %d pods", len(l.Items))
	}
	done := make(chan cache.Store)
	go func() { done <- informerOf(t, g.client(true)) }()
	p := pod("a", "u1", "1")
	if err := g.store.Replace(t.Context(), []wire.Message{message(t, p, 5)}, "s", 5); err != nil {
		t.Fatal(err)
	}
	if got := names(<-done); !slices.Equal(got, []string{"default/a"}) {
		t.Fatalf("first list: %v", got)
	}
}

func TestWatchResumes(t *testing.T) {
	g := newGateway(t, true)
	cms := g.client(false).CoreV1().ConfigMaps("default")
	g.deliver(configMap("a", "1"))
	list, err := cms.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("list: %v, %d", err, len(list.Items))
	}
	g.deliver(configMap("b", "1"))
	g.deliver(configMap("a", "2"))
	g.tombstone(configMap("b", "1"))
	w, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var got []string
	var last string
	for range 3 {
		e := <-w.ResultChan()
		cm := e.Object.(*corev1.ConfigMap)
		got = append(got, fmt.Sprint(e.Type, " ", cm.Name, cm.Data["key"]))
		last = cm.ResourceVersion
	}
	if want := []string{"ADDED b1", "MODIFIED a2", "DELETED b1"}; !slices.Equal(got, want) {
		t.Fatalf("events: %v, want %v", got, want)
	}
	// The deletion's version is a place to resume from: nothing comes twice.
	again, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	g.deliver(configMap("c", "1"))
	if e := <-again.ResultChan(); e.Object.(*corev1.ConfigMap).Name != "c" {
		t.Errorf("resumed with %v", e)
	}
}

func TestWatchFromTooLongAgoAndFromTheFuture(t *testing.T) {
	g := newGateway(t, true)
	cms := g.client(false).CoreV1().ConfigMaps("default")
	for i := range 4200 { // the store keeps 4,096 events
		if i%500 == 0 {
			g.deliver(configMap("a", fmt.Sprint(i)))
		}
		g.seq++
	}
	for i := 0; i < 4200; i += 100 {
		var batch []metav1.Object
		for j := range 100 {
			batch = append(batch, configMap("a", fmt.Sprint(i, j)))
		}
		g.deliver(batch...)
	}
	for _, version := range []string{"1", "99999999"} {
		if _, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version}); !apierrors.IsResourceExpired(err) {
			t.Errorf("watch from %s: %v", version, err)
		}
	}
}

func TestWatchSurvivesARestart(t *testing.T) {
	g := newGateway(t, true)
	g.deliver(configMap("a", "1"))
	list, err := g.client(false).CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.stop()
	g.start()
	w, err := g.client(false).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	g.deliver(configMap("a", "2"))
	if e := <-w.ResultChan(); e.Type != watch.Modified || e.Object.(*corev1.ConfigMap).Data["key"] != "2" {
		t.Errorf("after the restart: %v", e)
	}
}

// TestWatchByNameBeforeTheObject is the kubelet's way to a ConfigMap: a watch of one name that must wake up when the object
// is delivered, also when nobody can be asked.
func TestWatchByNameBeforeTheObject(t *testing.T) {
	g := newGateway(t, true)
	factory := informers.NewSharedInformerFactoryWithOptions(g.client(true), 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=late" }))
	informer := factory.Core().V1().ConfigMaps().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	g.deliver(configMap("other", "1"))
	if informer.HasSynced() {
		t.Error("synced with nothing while nobody knows whether the object exists")
	}
	g.deliver(configMap("late", "1"))
	eventually(t, "delivered", func() bool { return informer.HasSynced() && len(informer.GetStore().ListKeys()) == 1 })
	g.deliver(configMap("late", "2"))
	eventually(t, "changed", func() bool {
		o, ok, _ := informer.GetStore().GetByKey("default/late")
		return ok && o.(*corev1.ConfigMap).Data["key"] == "2"
	})
	g.tombstone(configMap("late", "2"))
	eventually(t, "deleted", func() bool { return len(informer.GetStore().ListKeys()) == 0 })
	g.deliver(configMap("late", "3"))
	eventually(t, "made again", func() bool { return len(informer.GetStore().ListKeys()) == 1 })
}

// TestUnknown: what the store does not hold is asked; who cannot ask answers 503; what the cloud called absent stays absent.
func TestUnknown(t *testing.T) {
	g := newGateway(t, true)
	c := g.client(true).CoreV1()
	if _, err := c.Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("offline: %v", err)
	}
	if _, err := c.Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a pod that is not here does not exist: %v", err)
	}
	if _, err := c.Nodes().Get(t.Context(), "another", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("another node is not known: %v", err)
	}
	if _, err := c.Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a resource that is not in the table: %v", err)
	}
	g.cloud.online(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/default/secrets/s" {
			answer(w, http.StatusOK, corev1.Secret{
				TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "u", ResourceVersion: "77"},
				Data: map[string][]byte{"k": []byte("v")},
			})
			return
		}
		notFound(w, r)
	})
	if s, err := c.Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}); err != nil || string(s.Data["k"]) != "v" || s.ResourceVersion == "77" {
		t.Errorf("online: %v, %+v", err, s)
	}
	if _, err := c.Secrets("default").Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("absent: %v", err)
	}
	if l, err := c.Secrets("default").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=s"}); err != nil || len(l.Items) != 1 {
		t.Errorf("list by name: %v", err)
	}
	g.cloud.offline()
	g.stop()
	g.start()
	c = g.client(true).CoreV1()
	if _, err := c.Secrets("default").Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("absent, after an offline reboot: %v", err)
	}
	if l, err := c.Secrets("default").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=absent"}); err != nil || len(l.Items) != 0 {
		t.Errorf("list of what is absent: %v", err)
	}
}
