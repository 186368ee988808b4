package localapi

import (
	"reflect"
	"sync"
	"weak"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// seen remembers the objects of a resource as lists have decoded them: the store holds JSON, and decoding is nearly all of the work
// of a list. It holds them weakly, so they cost a gateway no memory: the next garbage collection takes what no answer needs
// any more, and until then lists that follow each other decode nothing.
type seen struct {
	mu sync.Mutex
	// objects, guarded by mu, names what may still be there, and at which revision.
	objects map[wire.Key]glimpse
	// prune, guarded by mu, is how many names there may be before those of the dead are dropped.
	prune int
}

type glimpse struct {
	revision uint64
	object   weak.Pointer[decoded]
}

// decoded is what lives and dies as one.
type decoded struct{ runtime.Object }

// leastNames is how many names are kept without a look at whether they are of the living: some 50 KB.
const leastNames = 512

// look returns an object that was decoded before, or nil.
func (s *seen) look(e store.Entry) runtime.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, ok := s.objects[e.Key]; ok && g.revision == e.Revision {
		if d := g.object.Value(); d != nil {
			return d.Object
		}
	}
	return nil
}

func (s *seen) remember(e store.Entry, obj runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects == nil {
		s.objects, s.prune = map[wire.Key]glimpse{}, leastNames
	}
	if len(s.objects) >= s.prune {
		for key, g := range s.objects {
			if g.object.Value() == nil {
				delete(s.objects, key)
			}
		}
		s.prune = max(leastNames, 2*len(s.objects))
	}
	s.objects[e.Key] = glimpse{e.Revision, weak.Make(&decoded{obj})}
}

// view gives an object as decode does, and perhaps the very one that another request has: nobody may change it or anything in it,
// and who encodes it takes a copy (ownCopy, or that of a list), as an encoder writes the kind into the object itself.
func (r *resource) view(e store.Entry) (runtime.Object, error) {
	if r.seen == nil { // also what is a map all through: a copy of its top is none
		obj, _, err := r.decode(e)
		return obj, err
	}
	if obj := r.seen.look(e); obj != nil {
		return obj, nil
	}
	obj, _, err := r.decode(e)
	if err == nil {
		r.seen.remember(e, obj)
	}
	return obj, err
}

// ownCopy copies the top of an object.
func ownCopy(obj runtime.Object) runtime.Object {
	from := reflect.ValueOf(obj).Elem()
	to := reflect.New(from.Type())
	to.Elem().Set(from)
	return to.Interface().(runtime.Object)
}
