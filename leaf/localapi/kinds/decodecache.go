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

// ShallowCopy copies the top level of an object.
func ShallowCopy(obj runtime.Object) runtime.Object {
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	return to.Interface().(runtime.Object)
}
