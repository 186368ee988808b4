package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// HashPrefix is how the hash of a CA begins. The rest is SHA-256 of its certificate's SubjectPublicKeyInfo, in hexadecimal, as
// kubeadm has it: a CA that is renewed with its key keeps it.
const HashPrefix = "sha256:"

// ValidHash tells whether text looks like the hash of a CA.
func ValidHash(text string) bool {
	sum, found := strings.CutPrefix(strings.ToLower(text), HashPrefix)
	raw, err := hex.DecodeString(sum)
	return found && err == nil && len(raw) == sha256.Size
}
