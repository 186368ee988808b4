package localapi

import (
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// TestListsKeepNothing: what lists have decoded is there for who comes next, in that state only, and goes with a garbage collection.
func TestListsKeepNothing(t *testing.T) {
	s := &seen{}
	e := store.Entry{Key: wire.Key{Resource: "configmaps", Name: "a"}, Revision: 1}
	func() {
		obj := &corev1.ConfigMap{}
		s.remember(e, obj)
		if s.look(e) != obj {
			t.Error("not there")
		}
	}()
	newer := e
	if newer.Revision++; s.look(newer) != nil {
		t.Error("an older state is taken for the newest")
	}
	for deadline := time.Now().Add(time.Minute); s.look(e) != nil; {
		if runtime.GC(); time.Now().After(deadline) {
			t.Fatal("still there after a minute of collections")
		}
	}
	for i := range uint64(3 * leastNames) {
		s.remember(store.Entry{Key: wire.Key{Name: "b"}, Revision: i}, &corev1.ConfigMap{})
		s.remember(store.Entry{Key: wire.Key{Name: string(rune('A' + i))}, Revision: i}, &corev1.ConfigMap{})
		if i%leastNames == 0 {
			runtime.GC()
		}
	}
	if len(s.objects) > 2*leastNames {
		t.Errorf("%d names of the dead are kept", len(s.objects))
	}
}
