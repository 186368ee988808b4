// Package objectcache serves objects to controllers from a controller-runtime cache without an apiserver, for benchmarks of many objects.
//
// The cache and its informers are those of production; only what they list is given. Nothing changes unless the test changes the informers' stores.
package objectcache

import (
	"context"
	"net/http"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/frond-edge/frond/test/kit"
)

// Start starts a cache that serves lists by their items' kind, until the end of the test. Each kind that is read needs one.
func Start(t testing.TB, lists map[schema.GroupVersionKind]runtime.Object) cache.Cache {
	t.Helper()
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range lists {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	served, err := cache.New(&rest.Config{Host: "http://127.0.0.1:1"}, cache.Options{
		Mapper: mapper, HTTPClient: http.DefaultClient,
		NewInformer: func(_ toolscache.ListerWatcher, of runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			kind, err := apiutil.GVKForObject(of, scheme.Scheme)
			kit.Must(t, err)
			return toolscache.NewSharedIndexInformer(fixed{lists[kind]}, of, resync, indexers)
		},
	})
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- served.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		kit.Must(t, <-ended)
	})
	if !served.WaitForCacheSync(ctx) {
		t.Fatal("the cache did not sync")
	}
	return served
}

// Unstructured returns a list of objects.
func Unstructured(items []unstructured.Unstructured) runtime.Object {
	list := &unstructured.UnstructuredList{Items: items}
	list.SetResourceVersion("1")
	return list
}

// fixed lists what it was given, and nothing ever changes.
type fixed struct{ list runtime.Object }

func (f fixed) List(metav1.ListOptions) (runtime.Object, error) { return f.list, nil }
func (fixed) Watch(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil }

// IsWatchListSemanticsUnSupported makes client-go list.
func (fixed) IsWatchListSemanticsUnSupported() bool { return true }
