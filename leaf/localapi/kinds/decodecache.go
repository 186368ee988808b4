package kinds

import (
	"reflect"
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// DecodeCache is a weak cache of a resource's decoded objects. The store holds JSON, and decoding is nearly all of the work
// of a list. The cache holds weak references, so it costs a gateway no memory: the next garbage collection frees every
// object that no answer needs, and until then successive lists decode nothing.
type DecodeCache struct {
	mu sync.Mutex
	// objects holds the cached references and their revisions, by key; an object may have been collected. Guarded by mu.
	objects map[wire.Key]cachedObject
	// pruneAt is the number of names at which those of collected objects are dropped. Guarded by mu.
	pruneAt int
}

type cachedObject struct {
	revision uint64
	object   weak.Pointer[decodedObject]
}

// decodedObject is the unit that is collected as one.
type decodedObject struct{ runtime.Object }

// minCachedNames is how many names are kept before any is checked for a collected object: about 50 KB.
const minCachedNames = 512

// lookup returns a cached object, or nil.
func (s *DecodeCache) lookup(e store.Entry) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, ok := s.objects[e.Key]; ok && g.revision == e.Revision {
		if d := g.object.Value(); d != nil {
			return d.Object
		}
	}
	return nil
}

func (s *DecodeCache) add(e store.Entry, obj runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects, s.pruneAt = map[wire.Key]cachedObject{}, minCachedNames
	}
	if len(s.objects) >= s.pruneAt {
		for key, g := range s.objects {
			if g.object.Value() == nil {
				delete(s.objects, key)
			}
		}
		s.pruneAt = max(minCachedNames, 2*len(s.objects))
	}
	s.objects[e.Key] = cachedObject{e.Revision, weak.Make(&decodedObject{obj})}
}

// DecodeShared returns an object as decode does, and possibly the same one as another request: no caller may change it or anything in it.
// A caller that encodes it makes a copy first (shallowCopy, or that of a list), as an encoder writes the kind into the object.
func (r *Resource) DecodeShared(e store.Entry) (runtime.Object, error) {
	if r.DecodeCache == nil { // nor objects that are maps throughout: a copy of the top level shares the map
		obj, _, err := r.Decode(e)
		return obj, err
	}
	if obj := r.DecodeCache.lookup(e); obj != nil {
		return obj, nil
	}
	obj, _, err := r.Decode(e)
	if err == nil {
		r.DecodeCache.add(e, obj)
	}
	return obj, err
}

// ShallowCopy copies the top level of an object.
func ShallowCopy(obj runtime.Object) runtime.Object {
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	return to.Interface().(runtime.Object)
}
