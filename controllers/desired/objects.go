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

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// errNotCached is returned for an object that is not in the cache.
var errNotCached = errors.New("no such object")

// errKindNotSynced is returned while the cache does not hold the objects of a kind.
var errKindNotSynced = errors.New("kind is not followed")

// readCached returns a shallow copy of an object in the cache with its type set. What its fields point to belongs to the cache.
func (e *Engine) readCached(key wire.Key) (client.Object, error) {
	k, store := e.lookupKind(kindOf(key))
	if store == nil {
		return nil, errKindNotSynced
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
		return nil, errNotCached
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

// isCached reports whether the cache holds an object.
func (e *Engine) isCached(key wire.Key) bool {
	_, err := e.readCached(key)
	return err == nil
}

// expandReferences returns what an object needs now, for the graph.
func (e *Engine) expandReferences(key wire.Key) []wire.Key {
	if isSubject(key) {
		return e.bindingsOf(key.Name)
	}
	if e.cfg.Protected.Covers(key) {
		return nil // the object is withheld, and so is everything that only it refers to
	}
	if references.IsSelection(key) {
		return e.selectBundles(key)
	}
	k := e.kinds[kindOf(key)]
	if k == nil || k.references == nil {
		return nil
	}
	o, err := e.readCached(key)
	if err != nil {
		return nil // an object that does not exist needs nothing; its event will follow
	}
	return k.references(o)
}

// refreshObject updates the graph and the queue with one object.
func (e *Engine) refreshObject(k *kindSpec, namespace, name string) {
	key := k.keyOf(namespace, name)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enqueueScoped(key)
	if k.scopedOnly {
		return
	}
	o, err := e.readCached(key)
	if err != nil && !errors.Is(err, errNotCached) {
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
	if k.nodeOf != nil {
		var home *nodeState
		if err == nil {
			home = e.nodes[k.nodeOf(o)] // nil if the object's node is not an edge node
		}
		e.graph.placeObject(key, home)
	}
	e.graph.refreshReferences(key)
	if v := e.graph.vertices[key]; v != nil {
		for s := range v.needers.all {
			e.enqueueKey(s, key)
		}
	}
}

// refreshNode records whether a Node makes its name an edge node. node is nil if there is none.
func (e *Engine) refreshNode(name string, node *corev1.Node) {
	edge := false
	if node != nil {
		_, edge = node.Labels[names.LabelEdge]
	}
	s := e.nodes[name]
	switch {
	case s == nil && !edge:
		return
	case s == nil:
		s = e.addNode(name)
	}
	present := edge || node != nil && s.admitted
	if s.present == present {
		return
	}
	s.present, s.absentSince, s.deleted = present, time.Now(), !present
	if !present {
		s.admitted = false // the node has to authenticate again
		if e.queue != nil {
			e.queue.AddAfter(workItem{node: name}, e.cfg.Grace)
		}
		return
	}
	e.loadExisting(s)
	if e.owner.Term(name) != 0 {
		e.addItem(workItem{node: name}) // also for a node that returns after its grace period
	}
}

func (e *Engine) refreshEverywhere(key wire.Key, exists bool) {
	if exists && !e.cfg.Protected.Covers(key) {
		e.everywhere[key] = struct{}{}
	} else {
		delete(e.everywhere, key)
	}
	for _, s := range e.nodes {
		e.enqueueKey(s, key)
	}
}

func (e *Engine) addNode(node string) *nodeState {
	s := newNodeState(node, time.Now())
	e.nodes[node] = s
	return s
}

// loadExisting adds the objects to the graph that belong to a node and were cached before the node was known.
func (e *Engine) loadExisting(s *nodeState) {
	for _, k := range e.kinds {
		e.placeNodeObjects(k, e.stores[k], s)
	}
	for id := range e.optional {
		if k, store := e.lookupKind(id); store != nil {
			e.placeNodeObjects(k, store, s)
		}
	}
}

// placeNodeObjects adds a node's objects of one kind to the graph. The caller holds mu.
func (e *Engine) placeNodeObjects(k *kindSpec, store toolscache.Indexer, s *nodeState) {
	if k.nodeOf == nil {
		return
	}
	found, err := store.ByIndex(nodeIndex, s.name)
	if err != nil {
		e.log.Error("objects of node not listed", zap.String("node", s.name), zap.String("resource", k.resource), zap.Error(err))
		return
	}
	for _, o := range found {
		o := o.(client.Object)
		e.graph.placeObject(k.keyOf(o.GetNamespace(), o.GetName()), s)
	}
}
