package desired

import (
	"container/list"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// encodedLimit bounds the memory of cached encodings: room for the objects that change while thousands of nodes wait for them.
const encodedLimit = 32 << 20

// encodingCache is an LRU cache of the JSON of shared objects, so that a ConfigMap for 1,000 nodes
// is encoded once.
type encodingCache struct {
	limit int

	mu sync.Mutex
	// Guarded by mu.
	size  int
	byKey map[wire.Key]*list.Element
	order list.List // of *cachedEncoding, newest first
}

type cachedEncoding struct {
	key wire.Key
	payload
}

func newEncodingCache(limit int) *encodingCache {
	return &encodingCache{limit: limit, byKey: map[wire.Key]*list.Element{}}
}

func (c *encodingCache) get(key wire.Key, uid, version string) (payload, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[key]
	if at == nil {
		return payload{}, false
	}
	found := at.Value.(*cachedEncoding)
	if found.uid != uid || found.version != version {
		return payload{}, false
	}
	c.order.MoveToFront(at)
	return found.payload, true
}

func (c *encodingCache) put(key wire.Key, p payload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.byKey[key]; at != nil {
		c.remove(at)
	}
	c.byKey[key] = c.order.PushFront(&cachedEncoding{key: key, payload: p})
	c.size += len(p.object)
	for c.size > c.limit {
		c.remove(c.order.Back())
	}
}

func (c *encodingCache) remove(at *list.Element) {
	old := c.order.Remove(at).(*cachedEncoding)
	delete(c.byKey, old.key)
	c.size -= len(old.object)
}
