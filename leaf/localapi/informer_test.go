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
	"github.com/frond-edge/frond/test/kit"
)

// informerOf runs a pod informer as the kubelet does, and returns its store.
func informerOf(t *testing.T, c kubernetes.Interface) cache.Store {
	t.Helper()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", gatewayNode))
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{ListerWatcher: lw, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{}})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { controller.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	kit.Eventually(t, "informer synced", controller.HasSynced)
	return store
}

func storeKeys(s cache.Store) []string {
	keys := s.ListKeys()
	slices.Sort(keys)
	return keys
}

func TestWatch_InformerFollowsStore(t *testing.T) {
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, true)
			stranger := newPod("stranger", "u9", "9")
			stranger.Spec.NodeName = "other"
			g.deliverObjects(newPod("a", "u1", "1"), stranger)
			s := informerOf(t, g.newClient(protobuf))
			if got := storeKeys(s); !slices.Equal(got, []string{"default/a"}) {
				t.Fatalf("first list: %v", got)
			}
			g.deliverObjects(newPod("b", "u2", "2"))
			kit.Eventually(t, "b added", func() bool { return slices.Equal(storeKeys(s), []string{"default/a", "default/b"}) })
			changed := newPod("b", "u2", "3")
			changed.Labels["new"] = "yes"
			g.deliverObjects(changed)
			kit.Eventually(t, "b changed", func() bool {
				o, ok, _ := s.GetByKey("default/b")
				return ok && o.(*corev1.Pod).Labels["new"] == "yes"
			})
			g.deliverTombstone(newPod("a", "u1", "4"))
			kit.Eventually(t, "a deleted", func() bool { return slices.Equal(storeKeys(s), []string{"default/b"}) })
			// Moving out of the selector is a deletion for the watcher.
			changed.Spec.NodeName = "other"
			g.deliverObjects(changed)
			kit.Eventually(t, "b left", func() bool { return len(storeKeys(s)) == 0 })
		})
	}
}

// TestList_WaitsForFirstAttach: an empty list from a store that has not attached would make a kubelet kill its pods.
func TestList_WaitsForFirstAttach(t *testing.T) {
	g := newGateway(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if l, err := g.newClient(false).CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err == nil {
		t.Fatalf("a store that never attached lists %d pods", len(l.Items))
	}
	done := make(chan cache.Store)
	go func() { done <- informerOf(t, g.newClient(true)) }()
	p := newPod("a", "u1", "1")
	if err := g.store.Replace(t.Context(), []wire.Message{newMessage(t, p, 5)}, "s", 5); err != nil {
		t.Fatal(err)
	}
	if got := storeKeys(<-done); !slices.Equal(got, []string{"default/a"}) {
		t.Fatalf("first list: %v", got)
	}
}

func TestWatch_Resumes(t *testing.T) {
	g := newGateway(t, true)
	cms := g.newClient(false).CoreV1().ConfigMaps("default")
	g.deliverObjects(newConfigMap("a", "1"))
	list, err := cms.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("list: %v, %d", err, len(list.Items))
	}
	g.deliverObjects(newConfigMap("b", "1"))
	g.deliverObjects(newConfigMap("a", "2"))
	g.deliverTombstone(newConfigMap("b", "1"))
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
	// A watch can resume from the deletion's version: no event comes twice.
	again, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: last})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	g.deliverObjects(newConfigMap("c", "1"))
	if e := <-again.ResultChan(); e.Object.(*corev1.ConfigMap).Name != "c" {
		t.Errorf("resumed with %v", e)
	}
}

func TestWatch_ExpiredAndFutureVersions(t *testing.T) {
	g := newGateway(t, true)
	cms := g.newClient(false).CoreV1().ConfigMaps("default")
	for i := range 4200 { // the store keeps 4,096 events
		if i%500 == 0 {
			g.deliverObjects(newConfigMap("a", fmt.Sprint(i)))
		}
		g.seq++
	}
	for i := 0; i < 4200; i += 100 {
		var batch []metav1.Object
		for j := range 100 {
			batch = append(batch, newConfigMap("a", fmt.Sprint(i, j)))
		}
		g.deliverObjects(batch...)
	}
	for _, version := range []string{"1", "99999999"} {
		if _, err := cms.Watch(t.Context(), metav1.ListOptions{ResourceVersion: version}); !apierrors.IsResourceExpired(err) {
			t.Errorf("watch from %s: %v", version, err)
		}
	}
}

func TestWatch_SurvivesRestart(t *testing.T) {
	g := newGateway(t, true)
	g.deliverObjects(newConfigMap("a", "1"))
	list, err := g.newClient(false).CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	g.stop()
	g.start()
	w, err := g.newClient(false).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	g.deliverObjects(newConfigMap("a", "2"))
	if e := <-w.ResultChan(); e.Type != watch.Modified || e.Object.(*corev1.ConfigMap).Data["key"] != "2" {
		t.Errorf("after the restart: %v", e)
	}
}

// TestWatch_ByNameBeforeObjectExists: a kubelet watches one ConfigMap by name; the watch must return the object when it is
// delivered, also while the cloud cannot be asked.
func TestWatch_ByNameBeforeObjectExists(t *testing.T) {
	g := newGateway(t, true)
	factory := informers.NewSharedInformerFactoryWithOptions(g.newClient(true), 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=late" }))
	informer := factory.Core().V1().ConfigMaps().Informer()
	ctx, cancel := context.WithCancel(t.Context())
	factory.StartWithContext(ctx)
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	g.deliverObjects(newConfigMap("other", "1"))
	if informer.HasSynced() {
		t.Error("synced with nothing while nobody knows whether the object exists")
	}
	g.deliverObjects(newConfigMap("late", "1"))
	kit.Eventually(t, "delivered", func() bool { return informer.HasSynced() && len(informer.GetStore().ListKeys()) == 1 })
	g.deliverObjects(newConfigMap("late", "2"))
	kit.Eventually(t, "changed", func() bool {
		o, ok, _ := informer.GetStore().GetByKey("default/late")
		return ok && o.(*corev1.ConfigMap).Data["key"] == "2"
	})
	g.deliverTombstone(newConfigMap("late", "2"))
	kit.Eventually(t, "deleted", func() bool { return len(informer.GetStore().ListKeys()) == 0 })
	g.deliverObjects(newConfigMap("late", "3"))
	kit.Eventually(t, "made again", func() bool { return len(informer.GetStore().ListKeys()) == 1 })
}

// TestGet_UnknownObject: for an object that is not stored the cloud is asked; without a link the answer is 503; an object
// that the cloud reported as absent stays absent.
func TestGet_UnknownObject(t *testing.T) {
	g := newGateway(t, true)
	c := g.newClient(true).CoreV1()
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
	g.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/api/v1/namespaces/default/secrets/s" {
			writeAnswer(w, http.StatusOK, corev1.Secret{
				TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "u", ResourceVersion: "77"},
				Data: map[string][]byte{"k": []byte("v")},
			})
			return
		}
		answerNotFound(w, r)
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
	g.cloud.goOffline()
	g.stop()
	g.start()
	c = g.newClient(true).CoreV1()
	if _, err := c.Secrets("default").Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("absent, after an offline reboot: %v", err)
	}
	if l, err := c.Secrets("default").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=absent"}); err != nil || len(l.Items) != 0 {
		t.Errorf("list of what is absent: %v", err)
	}
}
