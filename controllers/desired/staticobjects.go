package desired

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/frond-edge/frond/api/wire"
)

// SetStatic gives every node an object that is not a Kubernetes object: the keys of tokens, and the list of delivered
// kinds. The latest value wins. Until it is set once in this process, what the stream holds of it stays. It does not block.
func (e *Engine) SetStatic(key wire.Key, object []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.setStatic(key, object)
}

// setStatic implements SetStatic. The caller holds mu.
func (e *Engine) setStatic(key wire.Key, object []byte) {
	sum := sha256.Sum256(object)
	digest := hex.EncodeToString(sum[:16])
	if e.staticObjects[key].digest == digest {
		return
	}
	e.staticObjects[key] = payload{version: digest, digest: digest, object: object}
	e.refreshEverywhere(key, true)
}

// isStatic reports whether an object can only come from SetStatic.
func isStatic(key wire.Key) bool {
	return key == wire.TokenKeysKey() || key == wire.DeliveredKindsKey()
}
