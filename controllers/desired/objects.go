package desired

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
)

// errAbsent says that the cache holds no such object.
var errAbsent = errors.New("no such object")

// errUnfollowed says that the cache does not hold the objects of that kind, or not yet.
var errUnfollowed = errors.New("kind is not followed")

// read returns a shallow copy of an object in the cache, its type stamped on it. What its fields point to is the cache's.
func (e *Engine) read(key wire.Key) (client.Object, error) {
	k, store := e.lookup(kindOf(key))
	if store == nil {
		return nil, errUnfollowed
	}
	name := key.Name
	if key.Namespace != "" {
		name = key.Namespace + "/" + key.Name
	}
	found, exists, err := store.GetByKey(name)
	if err != nil {
		return nil, fmt.Errorf("read %s from the cache: %w", key.Human(), err)
	}
	if !exists {
		return nil, errAbsent
	}
	if u, ok := found.(*unstructured.Unstructured); ok {
		return shallowCopy(u), nil
	}
	cached := reflect.ValueOf(found).Elem()
	shallow := reflect.New(cached.Type())
	shallow.Elem().Set(cached)
	o := shallow.Interface().(client.Object)
	o.GetObjectKind().SetGroupVersionKind(k.gvk)
	return o, nil
}

// shallowCopy returns an object whose metadata fields may be set.
func shallowCopy(u *unstructured.Unstructured) *unstructured.Unstructured {
	object := maps.Clone(u.Object)
	if m, ok := object["metadata"].(map[string]any); ok {
		object["metadata"] = maps.Clone(m)
	}
	return &unstructured.Unstructured{Object: object}
}

// exists reports whether the cache holds an object.
func (e *Engine) exists(key wire.Key) bool {
	_, err := e.read(key)
	return err == nil
}

// expand says what an object needs now, for the graph.
func (e *Engine) expand(key wire.Key) []wire.Key {
	if isSubject(key) {
		return e.bindings(key.Name)
	}
	if e.cfg.Protected.Covers(key) {
		return nil // it is withheld, and so is what it alone refers to
	}
	if isSelection(key) {
		return e.selectBundles(key)
	}
	k := e.kinds[kindOf(key)]
	if k == nil || k.refs == nil {
		return nil
	}
	o, err := e.read(key)
	if err != nil {
		return nil // what is not there needs nothing; its event will come
	}
	return k.refs(o)
}

// refresh brings the graph and the queue up to date with one object.
func (e *Engine) refresh(k *kind, namespace, name string) {
	key := k.key(namespace, name)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell(key)
	if k.scopedOnly {
		return
	}
	o, err := e.read(key)
	if err != nil && !errors.Is(err, errAbsent) {
		e.log.Error("object not readable", zap.String("object", key.Human()), zap.Error(err))
		return
	}
	if k.resource == "nodes" {
		node, _ := o.(*corev1.Node)
		e.refreshNode(name, node)
	}
	if k.everywhere {
		e.refreshEverywhere(key, err == nil)
		return
	}
	if k.home != nil {
		var home *site
		if err == nil {
			home = e.sites[k.home(o)] // nil for what is not an edge node
		}
		e.graph.place(key, home)
	}
	e.graph.refresh(key)
	if v := e.graph.vertices[key]; v != nil {
		for s := range v.sites.all {
			e.enqueue(s, key)
		}
	}
}

// refreshNode notes whether a Node makes its name an edge node. node is nil if there is none.
func (e *Engine) refreshNode(name string, node *corev1.Node) {
	edge := false
	if node != nil {
		_, edge = node.Labels[identity.EdgeLabel]
	}
	s := e.sites[name]
	switch {
	case s == nil && !edge:
		return
	case s == nil:
		s = e.open(name)
	}
	present := edge || node != nil && s.admitted
	if s.present == present {
		return
	}
	s.present, s.absentSince, s.deleted = present, time.Now(), !present
	if !present {
		s.admitted = false // it has to prove itself again
		if e.queue != nil {
			e.queue.AddAfter(item{node: name}, e.cfg.Grace)
		}
		return
	}
	e.gather(s)
	if e.owner.Term(name) != 0 {
		e.add(item{node: name}) // also for a node that is back after its grace
	}
}

func (e *Engine) refreshEverywhere(key wire.Key, exists bool) {
	if exists && !e.cfg.Protected.Covers(key) {
		e.everywhere[key] = struct{}{}
	} else {
		delete(e.everywhere, key)
	}
	for _, s := range e.sites {
		e.enqueue(s, key)
	}
}

func (e *Engine) open(node string) *site {
	s := newSite(node, time.Now())
	e.sites[node] = s
	return s
}

// gather puts into the graph what belongs to a node and came before the node was known.
func (e *Engine) gather(s *site) {
	for _, k := range e.kinds {
		e.placeHome(k, e.stores[k], s)
	}
	for id := range e.optional {
		if k, store := e.lookup(id); store != nil {
			e.placeHome(k, store, s)
		}
	}
}

// placeHome puts into the graph what belongs to a node of one kind. The caller holds mu.
func (e *Engine) placeHome(k *kind, store toolscache.Indexer, s *site) {
	if k.home == nil {
		return
	}
	found, err := store.ByIndex(homeIndex, s.name)
	if err != nil {
		e.log.Error("objects of node not listed", zap.String("node", s.name), zap.String("resource", k.resource), zap.Error(err))
		return
	}
	for _, o := range found {
		o := o.(client.Object)
		e.graph.place(k.key(o.GetNamespace(), o.GetName()), s)
	}
}
