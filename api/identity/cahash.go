package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// HashPrefix is the prefix of a CA's hash. The rest is SHA-256 of its certificate's SubjectPublicKeyInfo, in hexadecimal, as kubeadm has
// it: a CA that is renewed with its key keeps its hash.
const HashPrefix = "sha256:"

// ValidHash reports whether text has the form of a CA's hash.
func ValidHash(text string) bool {
	sum, found := strings.CutPrefix(strings.ToLower(text), HashPrefix)
	raw, err := hex.DecodeString(sum)
	return found && err == nil && len(raw) == sha256.Size
}
