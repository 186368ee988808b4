package localapi

import (
	"reflect"
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// decodeCache remembers the objects of a resource as lists have decoded them: the store holds JSON, and decoding is nearly all of the work
// of a list. It holds them weakly, so they cost a gateway no memory: the next garbage collection takes what no answer needs
// any more, and until then lists that follow each other decode nothing.
type decodeCache struct {
	mu sync.Mutex
	// objects, guarded by mu, names what may still be there, and at which revision.
	objects map[wire.Key]cachedObject
	// prune, guarded by mu, is how many names there may be before those of the dead are dropped.
	pruneAt int
}

type cachedObject struct {
	revision uint64
	object   weak.Pointer[decodedObject]
}

// decodedObject is what lives and dies as one.
type decodedObject struct{ runtime.Object }

// minCachedNames is how many names are kept without a look at whether they are of the living: some 50 KB.
const minCachedNames = 512

// lookup returns an object that was decoded before, or nil.
func (s *decodeCache) lookup(e store.Entry) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, ok := s.objects[e.Key]; ok && g.revision == e.Revision {
		if d := g.object.Value(); d != nil {
			return d.Object
		}
	}
	return nil
}

func (s *decodeCache) add(e store.Entry, obj runtime.Object) {
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

// decodeShared gives an object as decode does, and perhaps the very one that another request has: nobody may change it or anything in it,
// and who encodes it takes a copy (shallowCopy, or that of a list), as an encoder writes the kind into the object itself.
func (r *resource) decodeShared(e store.Entry) (runtime.Object, error) {
	if r.decodeCache == nil { // also what is a map all through: a copy of its top is none
		obj, _, err := r.decode(e)
		return obj, err
	}
	if obj := r.decodeCache.lookup(e); obj != nil {
		return obj, nil
	}
	obj, _, err := r.decode(e)
	if err == nil {
		r.decodeCache.add(e, obj)
	}
	return obj, err
}

// shallowCopy copies the top of an object.
func shallowCopy(obj runtime.Object) runtime.Object {
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	return to.Interface().(runtime.Object)
}
