package identity

import (
	"crypto/subtle"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/api/identity"
)

// Reason is why a link or request is refused, as a label of metrics and in the log.
type Reason string

// The reasons. The first ones are found without the records.
const (
	ReasonGarbage      Reason = "garbage"         // not a request of the hub, or a credential that cannot be decoded
	ReasonConnection   Reason = "connection-type" // not a leaf
	ReasonNoCredential Reason = "no-credential"
	ReasonSignature    Reason = "signature" // the key did not sign the server's nonce
	ReasonNodeName     Reason = "node-name" // not a valid name of a Node
	// ReasonServerName: the leaf's server name is not its node's name. The hub closes the older of two links with one name.
	ReasonServerName Reason = "server-name"

	ReasonRevokedKey  Reason = "revoked-key"
	ReasonRevokedNode Reason = "revoked-node"
	ReasonUnknown     Reason = "unknown"     // no record of the node, and no token
	ReasonOtherKey    Reason = "other-key"   // the node has another key
	ReasonTaken       Reason = "taken"       // the node exists already, and the token does not name it
	ReasonForeignKey  Reason = "foreign-key" // the key belongs to another node

	ReasonTokenUnknown Reason = "token-unknown"
	ReasonTokenWrong   Reason = "token-wrong" // the id is known, the secret is wrong
	ReasonTokenExpired Reason = "token-expired"
	ReasonTokenUsed    Reason = "token-used"
	ReasonTokenNode    Reason = "token-node" // the token is for another node
	ReasonLocked       Reason = "locked"     // too many wrong tokens
	ReasonNotReady     Reason = "not-ready"  // tokens are not read yet; the gateway dials again

	ReasonExpired Reason = "expired" // for longer than the policy's window
	ReasonCaller  Reason = "caller"  // requested for another key than the link's
	ReasonProof   Reason = "proof"   // a signature of the request is wrong
	ReasonSoon    Reason = "too-soon"
)

// KeyStatus returns why a key does not authenticate as its node now; "" if it does.
func KeyStatus(record *Record, key string, revoked bool, now time.Time) Reason {
	switch {
	case revoked:
		return ReasonRevokedKey
	case record == nil || key == "":
		return ReasonUnknown
	case !record.RevokedAt.IsZero():
		return ReasonRevokedNode
	case key != record.Key && key != record.Previous:
		return ReasonOtherKey
	case !now.Before(record.Expires):
		return ReasonExpired
	}
	return ""
}

// CheckToken returns why a token does not admit a key as a node; "" if it does. A recorded use remains valid for the
// node and key that made it, so that the answer may get lost.
func CheckToken(token *identity.Token, secret, node, key string, now time.Time) Reason {
	switch {
	case token == nil:
		return ReasonTokenUnknown
	case subtle.ConstantTimeCompare([]byte(token.Secret), []byte(secret)) != 1:
		return ReasonTokenWrong
	case !token.Expires.IsZero() && !now.Before(token.Expires):
		return ReasonTokenExpired
	case token.Node != "" && token.Node != node:
		return ReasonTokenNode
	case token.UsedUp() && !token.UsedBy(node, key):
		return ReasonTokenUsed
	}
	return ""
}

// IsNodeName reports whether a text is a valid Node name. Such a name is never a key, which has capitals.
func IsNodeName(node string) bool { return len(validation.IsDNS1123Subdomain(node)) == 0 }
