package wire

import "hash/fnv"

// Inventory summarises the cloud's objects that a node should have or has, so that both ends can compare them in a few bytes. It depends
// on each object's key, UID and version (the label that the cloud assigned) and not on their order. A node's own writes to an object do
// not change it.
type Inventory struct {
	// Objects is the number of objects.
	Objects int `json:"objects"`
	// Sum is the sum of the objects' hashes, as text because JSON has no such number.
	Sum uint64 `json:"sum,string"`
}

// Add adds an object.
func (c *Inventory) Add(key Key, uid, version string) {
	c.Sum += hashObject(key, uid, version)
	c.Objects++
}

// Remove removes an object that was added.
func (c *Inventory) Remove(key Key, uid, version string) {
	c.Sum -= hashObject(key, uid, version)
	c.Objects--
}

func hashObject(key Key, uid, version string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key.String() + "\x00" + uid + "\x00" + version)) // a hash never fails
	x := h.Sum64()
	// The finaliser of MurmurHash3: with FNV, similar texts have similar hashes, and their sum would distinguish them poorly.
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
