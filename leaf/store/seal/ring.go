// Package seal encrypts secrets on a gateway's disk: XChaCha20-Poly1305 with a key of the gateway.
//
// By default the key is in a file on the same disk. That protects data that leaves the disk without the key (a backup, a
// bug report, a `nats` listing, blocks of files that were deleted), not a disk that is stolen as a whole. A caller with a
// TPM keeps the key there and passes it to New.
package seal

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/crypto/chacha20poly1305"
)

// KeySize is the length of a secret, in bytes.
const KeySize = 32

// algorithm is the name in each envelope. Its nonces are long enough to be drawn at random without limit.
const algorithm = "xchacha20poly1305"

// ErrKey reports that data was sealed with a key that is not in the ring.
var ErrKey = errors.New("sealed with another key")

// ringKey is one secret, ready for use.
type ringKey struct {
	id   string
	aead cipher.AEAD
}

// Ring holds the gateway's keys. The first key seals; each key opens the data that it has sealed. It may be used concurrently.
type Ring struct{ keys []ringKey }

// New returns a ring of secrets, the newest first. It keeps none of the slices.
func New(secrets ...[]byte) (*Ring, error) {
	if len(secrets) == 0 {
		return nil, errors.New("no key to seal with")
	}
	r := &Ring{}
	for _, secret := range secrets {
		if len(secret) != KeySize {
			return nil, fmt.Errorf("a key has %d bytes, not %d", len(secret), KeySize)
		}
		derived, err := hkdf.Key(sha256.New, secret, nil, "frond store v1", chacha20poly1305.KeySize)
		if err != nil {
			return nil, fmt.Errorf("derive key: %w", err)
		}
		aead, err := chacha20poly1305.NewX(derived)
		if err != nil {
			return nil, fmt.Errorf("derive key: %w", err)
		}
		r.keys = append(r.keys, ringKey{keyID(secret), aead})
	}
	return r, nil
}

// keyID returns the id of a secret, which reveals nothing else about it.
func keyID(secret []byte) string {
	sum := sha256.Sum256(append([]byte("frond store key id "), secret...))
	return hex.EncodeToString(sum[:8])
}

// envelope is the written form, readable except for its data.
type envelope struct {
	Sealed string `json:"sealed"`
	Key    string `json:"key"`
	Data   []byte `json:"data"` // nonce and ciphertext
}

// Seal encrypts plain and binds it to name: it opens only with the same name. Each call returns a different JSON object.
func (r *Ring) Seal(name string, plain []byte) ([]byte, error) {
	k := r.keys[0]
	data := make([]byte, k.aead.NonceSize(), k.aead.NonceSize()+len(plain)+k.aead.Overhead())
	_, _ = rand.Read(data) // never fails
	return json.Marshal(envelope{algorithm, k.id, k.aead.Seal(data, data, plain, []byte(name))})
}

// Open reverses Seal; current reports whether the first key sealed the data. It returns ErrKey for a key that is not in the ring.
func (r *Ring) Open(name string, sealed []byte) (plain []byte, current bool, err error) {
	var e envelope
	if err := json.Unmarshal(sealed, &e); err != nil {
		return nil, false, fmt.Errorf("read the envelope: %w", err)
	}
	if e.Sealed != algorithm {
		return nil, false, fmt.Errorf("sealed by %q, which is not known here", e.Sealed)
	}
	for i, k := range r.keys {
		if k.id != e.Key {
			continue
		}
		if len(e.Data) < k.aead.NonceSize() {
			return nil, false, errors.New("the envelope is too short")
		}
		nonce, data := e.Data[:k.aead.NonceSize()], e.Data[k.aead.NonceSize():]
		plain, err = k.aead.Open(data[:0], nonce, data, []byte(name))
		if err != nil {
			return nil, false, fmt.Errorf("open what key %s has sealed: %w", k.id, err)
		}
		return plain, i == 0, nil
	}
	return nil, false, fmt.Errorf("%w: %s", ErrKey, e.Key)
}
