package grants_test

import (
	"fmt"
	"testing"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/grants"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/objectcache"
	"github.com/frond-edge/frond/controllers/desired/published"
)

// ignoreKinds retains nothing.
type ignoreKinds struct{}

func (ignoreKinds) Retain(kinds.ID, schema.GroupVersionKind) {}
func (ignoreKinds) Release(kinds.ID)                         {}

// newScopedNodes creates that many nodes that have one scope each, and returns a function that processes an event of an
// object, and one that returns how many nodes it was enqueued at since.
func newScopedNodes(tb testing.TB, nodes int, scope func(node int) wire.Scope) (event func(wire.Key), enqueued *int) {
	tb.Helper()
	enqueued = new(int)
	scopes := map[string]wire.Scope{}
	book := grants.NewBook(grants.Config{
		Objects: objectcache.New(), Retainer: ignoreKinds{}, Log: zap.NewNop(), Enqueue: func(*grants.Node, wire.Key, controllers.Priority) { *enqueued++ },
		Source: func(node string) ([]wire.ScopeKind, bool, error) {
			return []wire.ScopeKind{{Scope: scopes[node], Kind: "Any", Namespaced: true}}, true, nil
		},
	})
	for n := range nodes {
		name := fmt.Sprint(n)
		scopes[name] = scope(n)
		if err := book.Refresh(grants.NewNode(name, &published.State{}), false); err != nil {
			tb.Fatal(err)
		}
	}
	*enqueued = 0
	return book.EnqueueScoped, enqueued
}

// scopeOf gives ten nodes a scope that covers widgets of the namespace shop, and all others one on another kind or namespace.
func scopeOf(node int) wire.Scope {
	s := wire.Scope{Group: "example.com", Version: "v1", Resource: "widgets", Namespace: "shop"}
	switch {
	case node < 5:
	case node < 10:
		s.Namespace = ""
	case node%2 == 0:
		s.Namespace = fmt.Sprint("ns-", node%100)
	default:
		s.Resource, s.Namespace = "gadgets", ""
	}
	return s
}

var widget = wire.Key{Group: "example.com", Resource: "widgets", Namespace: "shop", Name: "w"}

// An event reaches exactly the nodes with a scope that covers the object.
func TestBook_EnqueuesAtSubscribersOnly(t *testing.T) {
	event, enqueued := newScopedNodes(t, 100, scopeOf)
	if event(widget); *enqueued != 10 {
		t.Errorf("enqueued at %d nodes, want 10", *enqueued)
	}
}

// BenchmarkScopedEvent measures an event of a scoped kind, where ten nodes have a scope on it and all others on another
// kind or namespace: the cost must not grow with the others.
func BenchmarkScopedEvent(b *testing.B) {
	for _, nodes := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(nodes, "-nodes"), func(b *testing.B) {
			event, _ := newScopedNodes(b, nodes, scopeOf)
			for b.Loop() {
				event(widget)
			}
		})
	}
}
