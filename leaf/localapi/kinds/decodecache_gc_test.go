package kinds

import (
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// TestDecodeCache_IsCollected: objects decoded by a list are shared with later requests, in the same state only, until a
// garbage collection.
func TestDecodeCache_IsCollected(t *testing.T) {
	s := &DecodeCache{}
	e := store.Entry{Key: wire.Key{Resource: "configmaps", Name: "a"}, Revision: 1}
	func() {
		obj := &corev1.ConfigMap{}
		s.add(e, obj)
		if s.lookup(e) != obj {
			t.Error("not there")
		}
	}()
	newer := e
	if newer.Revision++; s.lookup(newer) != nil {
		t.Error("an older state is taken for the newest")
	}
	for deadline := time.Now().Add(time.Minute); s.lookup(e) != nil; {
		if runtime.GC(); time.Now().After(deadline) {
			t.Fatal("still there after a minute of collections")
		}
	}
	for i := range uint64(3 * minCachedNames) {
		s.add(store.Entry{Key: wire.Key{Name: "b"}, Revision: i}, &corev1.ConfigMap{})
		s.add(store.Entry{Key: wire.Key{Name: string(rune('A' + i))}, Revision: i}, &corev1.ConfigMap{})
		if i%minCachedNames == 0 {
			runtime.GC()
		}
	}
	if len(s.objects) > 2*minCachedNames {
		t.Errorf("%d names of the dead are kept", len(s.objects))
	}
}
