package tunnel

import (
	"crypto/rand"
	"encoding/base64"
	"strings"

	"github.com/frond-edge/frond/api/wire"
)

// A stream has one subject in each direction: tunnel.<node>.<replica>.<id> towards the node and
// tunnelup.<node>.<replica>.<id> towards the Dialer that opened it. <replica> is random for each Dialer, <id> for each
// stream, and nobody can guess either.
const (
	downPrefix = "tunnel."
	upPrefix   = "tunnelup."
	// silentPrefix is where a Dialer tells the others of a node that does not answer: tunnelsilent.<node>.<replica>.
	silentPrefix = "tunnelsilent."

	replicaBytes = 6  // 8 letters: enough that two live Dialers differ
	idBytes      = 16 // 22 letters: nobody guesses it
)

// UpSubjects are all subjects from nodes to Dialers, DownSubjects those from Dialers to nodes.
const (
	UpSubjects   = upPrefix + "*.*.*"
	DownSubjects = downPrefix + "*.*.*"
)

// Permissions are the subjects that a node's user may publish to and subscribe to for its tunnels, and nothing more.
func Permissions(node string) (publish, subscribe string) {
	token := wire.Escape(node)
	return upPrefix + token + ".>", downPrefix + token + ".>"
}

// randomToken returns one NATS token that nobody guesses.
func randomToken(bytes int) string {
	b := make([]byte, bytes)
	_, _ = rand.Read(b) // never fails, says its documentation
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseSubject splits the subject of a stream. key is "<replica>.<id>". It is false for any subject that none of
// our subscriptions should have matched.
func parseSubject(prefix, subject string) (token, key string, ok bool) {
	rest, ok := strings.CutPrefix(subject, prefix)
	if !ok {
		return "", "", false
	}
	token, key, ok = strings.Cut(rest, ".")
	replica, id, two := strings.Cut(key, ".")
	return token, key, ok && two && isRandomToken(replica, replicaBytes) && isRandomToken(id, idBytes)
}

// parseSilent splits the subject of a verdict.
func parseSilent(subject string) (token, replica string, ok bool) {
	rest, ok := strings.CutPrefix(subject, silentPrefix)
	token, replica, two := strings.Cut(rest, ".")
	return token, replica, ok && two && isRandomToken(replica, replicaBytes)
}

// isRandomToken tells whether random can have made a token.
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
