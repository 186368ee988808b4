package protocol

import (
	"crypto/rand"
	"encoding/base64"
	"strings"

	"github.com/frond-edge/frond/api/wire"
)

// A stream has one subject in each direction: tunnel.<node>.<replica>.<id> to the node and tunnelup.<node>.<replica>.<id> to the Dialer
// that opened it. <replica> is random for each Dialer, <id> for each stream; neither can be guessed.
const (
	// DownPrefix is the prefix of subjects to nodes, UpPrefix of subjects to Dialers.
	DownPrefix = "tunnel."
	UpPrefix   = "tunnelup."
	// SilentPrefix is the subject prefix of notices between Dialers about a node that does not answer: tunnelsilent.<node>.<replica>.
	SilentPrefix = "tunnelsilent."

	replicaBytes = 6  // 8 letters: enough that two live Dialers differ
	idBytes      = 16 // 22 letters: cannot be guessed
)

// UpSubjects match all subjects from nodes to Dialers, DownSubjects those from Dialers to nodes.
const (
	UpSubjects   = UpPrefix + "*.*.*"
	DownSubjects = DownPrefix + "*.*.*"
)

// Permissions are the subjects that a node's user may publish to and subscribe to for its tunnels, and nothing more.
func Permissions(node string) (publish, subscribe string) {
	token := wire.Escape(node)
	return UpPrefix + token + ".>", DownPrefix + token + ".>"
}

// NewReplica returns the token of a new Dialer.
func NewReplica() string { return randomToken(replicaBytes) }

// NewStreamID returns the token of a new stream.
func NewStreamID() string { return randomToken(idBytes) }

// randomToken returns one NATS token that cannot be guessed.
func randomToken(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, according to its documentation
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseSubject splits the subject of a stream. key is "<replica>.<id>". ok is false for any subject that none of the tunnel's
// subscriptions should have matched.
func ParseSubject(prefix, subject string) (token, key string, ok bool) {
	rest, ok := strings.CutPrefix(subject, prefix)
	if !ok {
		return "", "", false
	}
	token, key, ok = strings.Cut(rest, ".")
	replica, id, two := strings.Cut(key, ".")
	return token, key, ok && two && isRandomToken(replica, replicaBytes) && isRandomToken(id, idBytes)
}

// ParseSilent splits the subject of a notice about a silent node.
func ParseSilent(subject string) (token, replica string, ok bool) {
	rest, ok := strings.CutPrefix(subject, SilentPrefix)
	token, replica, two := strings.Cut(rest, ".")
	return token, replica, ok && two && isRandomToken(replica, replicaBytes)
}

// isRandomToken reports whether randomToken can have made a token.
func isRandomToken(token string, bytes int) bool {
	if len(token) != base64.RawURLEncoding.EncodedLen(bytes) {
		return false
	}
	for i := range len(token) {
		c := token[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}
