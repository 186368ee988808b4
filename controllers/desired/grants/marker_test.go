package grants

import (
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/published"
)

type retainNothing struct{}

func (retainNothing) Retain(kinds.ID, schema.GroupVersionKind) {}
func (retainNothing) Release(kinds.ID)                         {}

// TestBook_MarkerFollowsObjects: a stream that lost an object and still holds the marker of its scope gets the object and then another marker,
// also if the object is processed before the marker: workers process keys in any order.
func TestBook_MarkerFollowsObjects(t *testing.T) {
	id := kinds.ID{Resource: "configmaps"}
	spec := kinds.TableByID(true)[id]
	objects := objectcache.New()
	objects.Add(objectcache.Kind{Spec: spec, Store: toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})})
	k, _ := objects.Kind(id)
	born := time.Now().Add(-time.Hour)
	lost := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "lost", CreationTimestamp: metav1.NewTime(born)}}
	if err := k.Store.Add(lost); err != nil {
		t.Fatal(err)
	}
	scope := wire.Scope{Version: "v1", Resource: "configmaps", Namespace: "shop"}
	marker, object := scope.Marker(), wire.Key{Resource: "configmaps", Namespace: "shop", Name: "lost"}

	var state published.State
	state.EndLoad(state.BeginLoad(), map[wire.Key]wire.Message{marker: {Key: marker, Op: wire.Apply, Sequence: 7, Time: time.Now(), Digest: "1-v1-ConfigMap"}}, "", 1)
	enqueued := map[wire.Key]bool{}
	book := NewBook(Config{
		Objects: objects, Retainer: retainNothing{}, Fixed: kinds.TableByID(true), Log: zap.NewNop(),
		Enqueue: func(_ *Node, key wire.Key, _ controllers.Priority) { enqueued[key] = true },
		Source: func(string) ([]wire.ScopeKind, bool, error) {
			return []wire.ScopeKind{{Scope: scope, Kind: "ConfigMap", Namespaced: true}}, true, nil
		},
	})
	n := NewNode("n", &state)
	if err := book.Refresh(n, true); err != nil {
		t.Fatal(err)
	}
	book.FillAll(n, map[wire.Key]struct{}{})

	// The lost object is published first.
	state.Store(object, published.Record{Sequence: 8}, 0)
	book.Reconciled(n, object, book.Fills(), false)
	want, retain, err := book.Marker(n, scope, false)
	if want != nil || retain || err != nil {
		t.Fatalf("the marker that precedes the lost object stays: %v %v %v", want, retain, err)
	}
	state.Store(marker, published.Record{Sequence: 9, Deleted: true}, 0)
	clear(enqueued)
	book.Reconciled(n, marker, book.Fills(), false)
	if !enqueued[marker] {
		t.Fatal("nothing asks for the marker that must follow")
	}
	if want, _, err = book.Marker(n, scope, false); want == nil || err != nil {
		t.Fatalf("the marker is not made again: %v", err)
	}
	state.Store(marker, published.Record{Sequence: 10, Digest: want.Digest}, 0)
	clear(enqueued)
	book.Reconciled(n, marker, book.Fills(), false)
	if len(enqueued) != 0 {
		t.Errorf("a scope at rest asks for %v", enqueued)
	}
}
