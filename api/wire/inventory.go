package wire

import "hash/fnv"

// Inventory sums up what a node should have or has of the cloud's objects, so that both ends can compare it in a few bytes.
// It depends on each object's key, UID and version (the label that the cloud gave it) and not on their order. What a node
// itself writes into an object does not change it.
type Inventory struct {
	// Objects is how many there are.
	Objects int `json:"objects"`
	// Sum is the sum of the objects' hashes, in text as JSON knows no such number.
	Sum uint64 `json:"sum,string"`
}

// Add counts an object.
func (c *Inventory) Add(key Key, uid, version string) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key.String() + "\x00" + uid + "\x00" + version)) // a hash never fails
	x := h.Sum64()
	// The finaliser of MurmurHash3: near texts have near hashes with FNV, and a sum of them would not tell them apart well.
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	c.Sum += x ^ x>>33
	c.Objects++
}
