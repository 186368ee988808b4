package record

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/frond-edge/frond/api/wire"
)

// Sealer encrypts objects that must not be on disk as plain text. It may be called concurrently and keeps no argument.
type Sealer interface {
	// Seal returns a JSON object that hides plain and opens only with the same name, so that two sealed objects cannot be swapped.
	Seal(name string, plain []byte) ([]byte, error)
	// Open reverses Seal. current is false if Seal would now use another key.
	Open(name string, sealed []byte) (plain []byte, current bool, err error)
}

// saltSize is long enough that a checksum reveals nothing about its content.
const saltSize = 16

var errUnsealable = errors.New("sealed, and it cannot be opened")

// Sealing seals and opens the payloads of secret objects.
type Sealing struct {
	// Sealer encrypts; nil writes all objects as plain text.
	Sealer Sealer
	// Secret selects the objects that are sealed; nil selects all.
	Secret func(wire.Key) bool
}

// IsSecret reports whether the payload of an object is sealed.
func (s Sealing) IsSecret(key wire.Key) bool {
	return s.Sealer != nil && (s.Secret == nil || s.Secret(key))
}

// Prepare marks a live record for sealing when it is written, if its object is secret; this changes its checksum.
func (s Sealing) Prepare(r *Record) {
	if r.State != Live || r.Salt != nil || !s.IsSecret(r.Key) {
		return
	}
	r.Salt = make([]byte, saltSize)
	_, _ = rand.Read(r.Salt) // never fails
	r.Derive()
}

// Seal returns the sealed payload of a record on disk. The plain text is the salt's length, the salt and the object.
func (s Sealing) Seal(r *Record) ([]byte, error) {
	plain := make([]byte, 0, 1+len(r.Salt)+len(r.Object))
	plain = append(append(append(plain, byte(len(r.Salt))), r.Salt...), r.Object...)
	data, err := s.Sealer.Seal(r.Key.String(), plain)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", r.Key.Human(), err)
	}
	return data, nil
}

// Unseal sets a record's object from a payload.
func (s Sealing) Unseal(r *Record, sealed bool, data []byte) error {
	if !sealed {
		r.Object = bytes.Clone(data) // data may be a slice of a larger network buffer
		r.NeedsReseal = s.IsSecret(r.Key)
		return nil
	}
	if s.Sealer == nil {
		return fmt.Errorf("%w: no key is configured", errUnsealable)
	}
	plain, current, err := s.Sealer.Open(r.Key.String(), data)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnsealable, err)
	}
	if len(plain) == 0 || len(plain) < 1+int(plain[0]) {
		return fmt.Errorf("%w: too short", errUnsealable)
	}
	n := 1 + int(plain[0])
	if n > 1 {
		r.Salt = plain[1:n:n]
	}
	r.Object, r.NeedsReseal = plain[n:], !current
	return nil
}
