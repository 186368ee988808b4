package desired

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/frond-edge/frond/api/wire"
)

// Provide gives every node an object that is none of Kubernetes': the keys of tokens, and which kinds it gets. The latest counts. Until it was provided
// once in this process, what the stream holds of it stays. It does not block.
func (e *Engine) Provide(key wire.Key, object []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.provide(key, object)
}

// provide is Provide; the caller holds mu.
func (e *Engine) provide(key wire.Key, object []byte) {
	sum := sha256.Sum256(object)
	digest := hex.EncodeToString(sum[:16])
	if e.provided[key].digest == digest {
		return
	}
	e.provided[key] = payload{version: digest, digest: digest, object: object}
	e.refreshEverywhere(key, true)
}

// isProvided reports whether an object can only come from Provide.
func isProvided(key wire.Key) bool {
	return key == wire.TokenKeysKey() || key == wire.DeliveredKindsKey()
}
