package payload

import (
	"container/list"
	"sync"

	"github.com/frond-edge/frond/api/wire"
)

// Cache is an LRU cache of encoded payloads that several nodes share, so that a ConfigMap for 1,000 nodes is encoded once.
// Its methods may be called concurrently.
type Cache struct {
	limit int

	mu sync.Mutex
	// Guarded by mu.
	size  int
	byKey map[cacheKey]*list.Element
	order list.List // of *cachedEncoding, newest first
}

// cacheKey names a share of an object, "" for the whole.
type cacheKey struct {
	wire.Key
	share string
}

type cachedEncoding struct {
	key cacheKey
	Payload
}

// NewCache creates a cache of at most limit bytes of JSON.
func NewCache(limit int) *Cache {
	return &Cache{limit: limit, byKey: map[cacheKey]*list.Element{}}
}

// Get returns the payload of a version of an object, or of a share of it.
func (c *Cache) Get(key wire.Key, share, uid, version string) (Payload, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.byKey[cacheKey{key, share}]
	if at == nil {
		return Payload{}, false
	}
	found := at.Value.(*cachedEncoding)
	if found.UID != uid || found.Version != version {
		return Payload{}, false
	}
	c.order.MoveToFront(at)
	return found.Payload, true
}

// Put adds a payload that is encoded, and drops the least recently used ones beyond the limit.
func (c *Cache) Put(key wire.Key, share string, p Payload) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := cacheKey{key, share}
	if at := c.byKey[of]; at != nil {
		c.remove(at)
	}
	c.byKey[of] = c.order.PushFront(&cachedEncoding{key: of, Payload: p})
	c.size += len(p.Object)
	for c.size > c.limit {
		c.remove(c.order.Back())
	}
}

func (c *Cache) remove(at *list.Element) {
	old := c.order.Remove(at).(*cachedEncoding)
	delete(c.byKey, old.key)
	c.size -= len(old.Object)
}
