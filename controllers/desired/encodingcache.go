package desired

import (
	"container/list"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// encodedLimit bounds the memory of encodings: room for the objects that change while thousands of nodes wait for them.
const encodedLimit = 32 << 20

// encodings keeps the JSON of shared objects, so that a ConfigMap for 1,000 nodes is encoded once. Oldest out first.
type encodings struct {
	limit int

	mu sync.Mutex
	// Guarded by mu.
	size  int
	byKey map[wire.Key]*list.Element
	order list.List // of *encoding, newest first
}

type encoding struct {
	key wire.Key
	payload
}

func newEncodings(limit int) *encodings {
	return &encodings{limit: limit, byKey: map[wire.Key]*list.Element{}}
}

func (c *encodings) get(key wire.Key, uid, version string) (payload, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return payload{}, false
	}
	found := at.Value.(*encoding)
	if found.uid != uid || found.version != version {
		return payload{}, false
	}
	c.order.MoveToFront(at)
	return found.payload, true
}

func (c *encodings) put(key wire.Key, p payload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.byKey[key]; at != nil {
		c.remove(at)
	}
	c.byKey[key] = c.order.PushFront(&encoding{key: key, payload: p})
	c.size += len(p.object)
	for c.size > c.limit {
		c.remove(c.order.Back())
	}
}

func (c *encodings) remove(at *list.Element) {
	old := c.order.Remove(at).(*encoding)
	delete(c.byKey, old.key)
	c.size -= len(old.object)
}
