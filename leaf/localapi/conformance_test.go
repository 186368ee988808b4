package localapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// pageView is what a client sees of one page of a list.
type pageView struct {
	Names []string
	Left  string
	More  bool
}

// readPages reads pods in pages of two.
func readPages(t *testing.T, cfg *rest.Config, ns, selector string) []pageView {
	t.Helper()
	c := clientFor(t, cfg).CoreV1().Pods(ns)
	var pages []pageView
	version := ""
	for opts := (metav1.ListOptions{Limit: 2, LabelSelector: selector}); ; {
		list, err := c.List(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		p := pageView{More: list.Continue != ""}
		for _, item := range list.Items {
			p.Names = append(p.Names, item.Name)
		}
		if list.RemainingItemCount != nil {
			p.Left = fmt.Sprint(*list.RemainingItemCount)
		}
		pages = append(pages, p)
		if version != "" && list.ResourceVersion != version {
			t.Errorf("a page of version %s after one of %s", list.ResourceVersion, version)
		}
		if version = list.ResourceVersion; list.Continue == "" {
			return pages
		}
		opts.Continue = list.Continue
	}
}

func TestPaging_MatchesAPIServer(t *testing.T) {
	shared := kubetest.Shared{}
	t.Cleanup(shared.Cleanup)
	apiserver := shared.Cluster(t)
	g := newGateway(t, true)
	ns := createObjects(t, apiserver.Client(t), apiserver.Namespace(t), g)
	for _, selector := range []string{"", "app", "app=none"} {
		if diff := cmp.Diff(readPages(t, apiserver.Config(), ns, selector), readPages(t, g.api.ClientConfig(), ns, selector)); diff != "" {
			t.Errorf("pages of %q (-apiserver +gateway):\n%s", selector, diff)
		}
	}
	for name, q := range map[string]apiRequest{
		"a token that is none":      {method: "GET", path: "/api/v1/namespaces/NS/pods?limit=1&continue=x"},
		"a token and a version":     {method: "GET", path: "/api/v1/namespaces/NS/pods?limit=1&continue=x&resourceVersion=7"},
		"a token and a match":       {method: "GET", path: "/api/v1/namespaces/NS/pods?limit=1&continue=x&resourceVersionMatch=Exact&resourceVersion=7"},
		"a limit that is no number": {method: "GET", path: "/api/v1/namespaces/NS/pods?limit=x"},
		"limited, but old will do":  {method: "GET", path: "/api/v1/namespaces/NS/pods?limit=1&resourceVersion=0"},
	} {
		t.Run(name, func(t *testing.T) {
			q.path = strings.ReplaceAll(q.path, "NS", ns)
			wantCode, want := sendAPIRequest(t, apiserver.Config(), q)
			gotCode, got := sendAPIRequest(t, g.api.ClientConfig(), q)
			if name == "a token that is none" {
				// A gateway keeps the rest of a list only for a while: an unknown token has expired, and clients list again.
				wantCode, want = 410, []any{"Status 410 Expired"}
			}
			if diff := cmp.Diff(want, got); diff != "" || gotCode != wantCode {
				t.Errorf("answer %d, want %d (-apiserver +gateway):\n%s", gotCode, wantCode, diff)
			}
		})
	}
}

// All pages of one list are of one moment, even if objects change in between. The token is valid only for its own request.
// client-go's pager recovers if it is no longer kept.
func TestPaging_PagesShareOneRevision(t *testing.T) {
	g := newGateway(t, true)
	for i := range 6 {
		g.deliverObjects(newPod(fmt.Sprint("p", i), fmt.Sprint("u", i), fmt.Sprint(i+1)))
	}
	pods := g.newClient(true).CoreV1().Pods("default")
	first, err := pods.List(t.Context(), metav1.ListOptions{Limit: 4})
	if err != nil || len(first.Items) != 4 {
		t.Fatalf("%d items, %v", len(first.Items), err)
	}
	g.deliverTombstone(newPod("p4", "u4", "5"))
	g.deliverObjects(newPod("p9", "u9", "9"))
	rest, err := pods.List(t.Context(), metav1.ListOptions{Limit: 4, Continue: first.Continue})
	if err != nil || len(rest.Items) != 2 || rest.Items[0].Name != "p4" || rest.Items[1].Name != "p5" {
		t.Fatalf("the rest: %+v, %v", rest.Items, err)
	}
	if _, err := g.newClient(true).CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{Limit: 4, Continue: first.Continue}); !apierrors.IsResourceExpired(err) {
		t.Errorf("a token of pods used for secrets: %v", err)
	}
	var names []string
	lists := 0
	list := pager.New(func(ctx context.Context, opts metav1.ListOptions) (o runtime.Object, err error) {
		if lists++; lists == 2 { // other lists have replaced the rest of this one
			for range 20 {
				if _, err := pods.List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
					return nil, err
				}
			}
		}
		return pods.List(ctx, opts)
	})
	list.PageSize = 2
	all, _, err := list.List(t.Context(), metav1.ListOptions{})
	if err == nil {
		err = meta.EachListItem(all, func(o runtime.Object) error {
			names = append(names, o.(*corev1.Pod).Name)
			return nil
		})
	}
	if want := []string{"p0", "p1", "p2", "p3", "p5", "p9"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%v, %v; want %v", names, err, want)
	}
}

// An operator reads here, changes, and writes to the cloud: with the version that it read, in every encoding, and with a
// conflict if the object has changed meanwhile.
func TestServer_ReadModifyWrite(t *testing.T) {
	shared := kubetest.Shared{}
	t.Cleanup(shared.Cleanup)
	apiserver := shared.Cluster(t)
	g := newGateway(t, true)
	g.cloud.goOnline(proxyTo(t, apiserver.Config()).ServeHTTP)
	ns := createObjects(t, apiserver.Client(t), apiserver.Namespace(t), g)
	truth := apiserver.Client(t).CoreV1().ConfigMaps(ns)
	deliver := func() {
		t.Helper()
		cm, err := truth.Get(t.Context(), "conf", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		cm.ManagedFields = nil
		g.deliverObjects(cm)
	}
	for name, protobuf := range allEncodings() {
		t.Run(name, func(t *testing.T) {
			deliver()
			cms := g.newClient(protobuf).CoreV1().ConfigMaps(ns)
			cm, err := cms.Get(t.Context(), "conf", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			cm.Data["by"] = name
			if _, err = cms.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
				t.Fatalf("update of the state that was read: %v", err)
			}
			if _, err = cms.Update(t.Context(), cm, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("update of a state that is gone: %v", err)
			}
			steps, err := json.Marshal([]map[string]any{{"op": "test", "path": "/metadata/resourceVersion", "value": cm.ResourceVersion}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err = cms.Patch(t.Context(), "conf", types.JSONPatchType, steps, metav1.PatchOptions{}); err == nil {
				t.Error("a JSON patch passed that tests for a state that is gone")
			}
			deliver()
			err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
				cm, err := cms.Get(t.Context(), "conf", metav1.GetOptions{})
				if err != nil {
					return err
				}
				merge := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q},"data":{"merged":%q}}`, cm.ResourceVersion, name)
				_, err = cms.Patch(t.Context(), "conf", types.MergePatchType, merge, metav1.PatchOptions{})
				return err
			})
			if now, getErr := truth.Get(t.Context(), "conf", metav1.GetOptions{}); err != nil || getErr != nil || now.Data["by"] != name || now.Data["merged"] != name {
				t.Errorf("%v, %v; the cloud has %v", err, getErr, now.Data)
			}
			deliver()
			stale := cm.ResourceVersion
			if err := cms.Delete(t.Context(), "conf", metav1.DeleteOptions{DryRun: []string{"All"}, Preconditions: &metav1.Preconditions{ResourceVersion: &stale}}); !apierrors.IsConflict(err) {
				t.Errorf("deletion of a state that is gone: %v", err)
			}
			if cm, err = cms.Get(t.Context(), "conf", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := cms.Delete(t.Context(), "conf", metav1.DeleteOptions{DryRun: []string{"All"}, Preconditions: &metav1.Preconditions{ResourceVersion: &cm.ResourceVersion}}); err != nil {
				t.Errorf("deletion of the state that was read: %v", err)
			}
		})
	}
}

// TestServer_RunsControllerRuntime runs an unchanged operator on the local API: a manager with its cache, typed, unstructured and
// metadata only, an index, and a reconciler that is called for changes.
func TestServer_RunsControllerRuntime(t *testing.T) {
	g := newGateway(t, true)
	g.deliverObjects(newPod("a", "u1", "1"), newConfigMap("conf", "1"))
	mgr, err := manager.New(g.api.ClientConfig(), manager.Options{Metrics: metricsserver.Options{BindAddress: "0"}, Logger: ctrl.Log})
	if err != nil {
		t.Fatal(err)
	}
	if err := mgr.GetFieldIndexer().IndexField(t.Context(), &corev1.Pod{}, "image", func(o client.Object) []string {
		return []string{o.(*corev1.Pod).Spec.Containers[0].Image}
	}); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string, 100) // more than this test makes
	skip := true
	err = ctrl.NewControllerManagedBy(mgr).For(&corev1.Pod{}).
		WatchesMetadata(&corev1.Service{}, &handler.EnqueueRequestForObject{}).
		WithOptions(controller.Options{SkipNameValidation: &skip}).
		Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			var p corev1.Pod
			err := mgr.GetClient().Get(ctx, r.NamespacedName, &p)
			seen <- fmt.Sprint(r.Name, " ", p.Labels["step"], " ", apierrors.IsNotFound(err))
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := mgr.Start(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("manager: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	expect := func(want string) {
		t.Helper()
		kit.Eventually(t, "the reconciler sees "+want, func() bool {
			select {
			case got := <-seen:
				return got == want
			default:
				return false
			}
		})
	}
	expect("a  false")
	changed := newPod("a", "u1", "2")
	changed.Labels["step"] = "two"
	g.deliverObjects(changed)
	expect("a two false")
	var list corev1.PodList
	if err := mgr.GetClient().List(t.Context(), &list, client.MatchingFields{"image": "busybox"}); err != nil || len(list.Items) != 1 {
		t.Errorf("by index: %d, %v", len(list.Items), err)
	}
	g.deliverObjects(&corev1.Service{TypeMeta: metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "svc", Namespace: "default", UID: "s1", ResourceVersion: "1"}})
	expect("svc  true")
	var cm unstructured.Unstructured
	cm.SetAPIVersion("v1")
	cm.SetKind("ConfigMap")
	if err := mgr.GetAPIReader().Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "conf"}, &cm); err != nil {
		t.Errorf("unstructured: %v", err)
	}
	g.deliverTombstone(changed)
	expect("a  true")
}
