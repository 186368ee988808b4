// Package objectcache reads the objects that informers keep in memory.
package objectcache

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/podcache"
)

// ErrNotFound is returned for an object that is not in the cache.
var ErrNotFound = errors.New("no such object")

// ErrKindNotSynced is returned while the cache does not hold all objects of a kind.
var ErrKindNotSynced = errors.New("kind is not followed")

// Kind is a kind of which the cache holds all objects.
type Kind struct {
	*kinds.Spec
	Store toolscache.Indexer
}

// Cache finds objects by their kind. Its methods may be called concurrently; reads take no lock.
type Cache struct {
	writer sync.Mutex // serializes the changes of synced
	synced atomic.Pointer[map[kinds.ID]Kind]
	// unpacked is the pod that was read last: an event reads its pod several times.
	unpacked atomic.Pointer[unpackedPod]
}

type unpackedPod struct {
	packed *podcache.Pod
	whole  *corev1.Pod
}

// New creates a Cache without kinds.
func New() *Cache {
	c := &Cache{}
	c.synced.Store(&map[kinds.ID]Kind{})
	return c
}

// Add adds kinds, all in one step.
func (c *Cache) Add(added ...Kind) {
	c.change(func(synced map[kinds.ID]Kind) {
		for _, k := range added {
			synced[k.ID()] = k
		}
	})
}

// Remove removes a kind.
func (c *Cache) Remove(id kinds.ID) {
	c.change(func(synced map[kinds.ID]Kind) { delete(synced, id) })
}

func (c *Cache) change(edit func(map[kinds.ID]Kind)) {
	c.writer.Lock()
	defer c.writer.Unlock()
	next := maps.Clone(*c.synced.Load())
	edit(next)
	c.synced.Store(&next)
}

// Kinds returns all kinds. The map must not be changed.
func (c *Cache) Kinds() map[kinds.ID]Kind { return *c.synced.Load() }

// Kind returns a kind; ok is false for one that the cache does not have.
func (c *Cache) Kind(id kinds.ID) (k Kind, ok bool) {
	k, ok = c.Kinds()[id]
	return k, ok
}

// Version returns the resourceVersion that the cache of a kind has reached; "" if the cache does not have the kind.
func (c *Cache) Version(id kinds.ID) string {
	k, ok := c.Kind(id)
	if !ok {
		return ""
	}
	return k.Store.LastStoreSyncResourceVersion()
}

// Get returns a shallow copy of an object with its type set. What its fields point to belongs to the cache. Without the
// object the error is ErrNotFound, without its kind ErrKindNotSynced.
func (c *Cache) Get(key wire.Key) (client.Object, error) {
	k, ok := c.Kind(kinds.Of(key))
	if !ok {
		return nil, ErrKindNotSynced
	}
	name := key.Name
	if key.Namespace != "" {
		name = key.Namespace + "/" + key.Name
	}
	found, exists, err := k.Store.GetByKey(name)
	if err != nil {
		return nil, fmt.Errorf("read %s from the cache: %w", key.Human(), err)
	}
	if !exists {
		return nil, ErrNotFound
	}
	if packed, ok := podcache.Of(found); ok {
		return c.whole(packed, k)
	}
	if u, ok := found.(*unstructured.Unstructured); ok {
		return payload.ShallowCopy(u), nil
	}
	cached := reflect.ValueOf(found).Elem()
	shallow := reflect.New(cached.Type())
	shallow.Elem().Set(cached)
	o := shallow.Interface().(client.Object)
	o.GetObjectKind().SetGroupVersionKind(k.GVK)
	return o, nil
}

// whole returns a shallow copy of a pod.
func (c *Cache) whole(packed *podcache.Pod, k Kind) (client.Object, error) {
	last := c.unpacked.Load()
	if last == nil || last.packed != packed {
		pod, err := packed.Whole()
		if err != nil {
			return nil, err
		}
		pod.SetGroupVersionKind(k.GVK)
		last = &unpackedPod{packed, pod}
		c.unpacked.Store(last)
	}
	shallow := *last.whole
	return &shallow, nil
}

// Has reports whether the cache holds an object.
func (c *Cache) Has(key wire.Key) bool {
	_, err := c.Get(key)
	return err == nil
}

// HasPod reports whether a pod exists and was not deleted by force.
func (c *Cache) HasPod(key wire.Key) bool {
	o, err := c.Get(key)
	pod, ok := o.(*corev1.Pod)
	return err == nil && ok && !payload.ForceDeleted(pod)
}

// InScope returns the objects of a kind in a namespace, "" for all, and when each was created.
func (k Kind) InScope(namespace string) (created map[wire.Key]time.Time, err error) {
	var objects []any
	if namespace == "" {
		objects = k.Store.List()
	} else if objects, err = k.Store.ByIndex(toolscache.NamespaceIndex, namespace); err != nil {
		return nil, fmt.Errorf("list %s: %w", k.Resource, err)
	}
	created = make(map[wire.Key]time.Time, len(objects))
	for _, object := range objects {
		o, err := meta.Accessor(object)
		if err != nil {
			return nil, fmt.Errorf("list %s: %T: %w", k.Resource, object, err)
		}
		created[k.Key(o.GetNamespace(), o.GetName())] = o.GetCreationTimestamp().Time
	}
	return created, nil
}

// OfNode returns the objects of a kind that belong to a node; none for a kind whose objects belong to none.
func (k Kind) OfNode(node string) ([]wire.Key, error) {
	if k.NodeOf == nil {
		return nil, nil
	}
	return k.find(kinds.NodeIndex, node, func(client.Object) bool { return true })
}

// Bindings returns the bindings that name a subject and that include accepts, sorted.
func (c *Cache) Bindings(subject string, include func(client.Object) bool) ([]wire.Key, error) {
	var all []wire.Key
	for _, k := range c.Kinds() {
		if k.Subjects == nil {
			continue
		}
		found, err := k.find(kinds.SubjectIndex, subject, include)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, wire.Key.Compare)
	return all, nil
}

// Bundles returns the trust bundles that a selection matches, sorted; none while their kind is not synced.
func (c *Cache) Bundles(selection wire.Key) ([]wire.Key, error) {
	k, ok := c.Kind(kinds.TrustBundles())
	if !ok {
		return nil, nil
	}
	signer, text, _ := strings.Cut(selection.Name, " ") // a signer's name has no space
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("selection %q: %w", selection.Name, err)
	}
	found, err := k.find(kinds.SignerIndex, signer, func(o client.Object) bool { return selector.Matches(labels.Set(o.GetLabels())) })
	slices.SortFunc(found, wire.Key.Compare)
	return found, err
}

// ServicesIn returns the Services of a namespace, sorted; none if the cache does not have the kind.
func (c *Cache) ServicesIn(namespace string) ([]wire.Key, error) {
	k, ok := c.Kind(kinds.Services())
	if !ok {
		return nil, nil
	}
	found, err := k.find(toolscache.NamespaceIndex, namespace, func(client.Object) bool { return true })
	slices.SortFunc(found, wire.Key.Compare)
	return found, err
}

// SlicesOf returns the EndpointSlices of a Service, sorted; none if the cache does not have the kind.
func (c *Cache) SlicesOf(service wire.Key) ([]wire.Key, error) {
	k, ok := c.Kind(kinds.Slices())
	if !ok || k.Service == nil {
		return nil, nil
	}
	found, err := k.find(kinds.ServiceIndex, service.Namespace+"/"+service.Name, func(client.Object) bool { return true })
	slices.SortFunc(found, wire.Key.Compare)
	return found, err
}

// DropWithheld removes from keys, which are of one kind, those of objects that a node must not be given.
func (c *Cache) DropWithheld(node string, kind kinds.ID, keys map[wire.Key]time.Time) {
	k, ok := c.Kind(kind)
	if !ok || k.Withheld == nil {
		return
	}
	maps.DeleteFunc(keys, func(key wire.Key, _ time.Time) bool {
		o, err := c.Get(key)
		return err == nil && k.Withheld(o, node)
	})
}

// RunsServiceAccount reports whether a pod that has not ended runs on a node with a service account.
func (c *Cache) RunsServiceAccount(node, namespace, account string) (bool, error) {
	k, ok := c.Kind(kinds.ID{Resource: "pods"})
	if !ok {
		return false, nil
	}
	found, err := k.Store.ByIndex(kinds.NodeIndex, node)
	return slices.ContainsFunc(found, func(o any) bool {
		pod, ok := podcache.Of(o)
		return ok && pod.Namespace() == namespace && runsAs(pod, account)
	}), err
}

// runsAs reports whether a pod proves that its node may act as a service account. A mirror pod proves nothing: the node
// itself creates it.
func runsAs(pod *podcache.Pod, account string) bool {
	return !pod.Mirror() && pod.Account() == account && !pod.Ended()
}

func (k Kind) find(index, value string, include func(client.Object) bool) ([]wire.Key, error) {
	found, err := k.Store.ByIndex(index, value)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", k.Resource, err)
	}
	var keys []wire.Key
	for _, object := range found {
		switch o := object.(type) {
		case *podcache.Pod: // no caller looks into one
			keys = append(keys, k.Key(o.Namespace(), o.Name()))
		case client.Object:
			if include(o) {
				keys = append(keys, k.Key(o.GetNamespace(), o.GetName()))
			}
		}
	}
	return keys, nil
}
