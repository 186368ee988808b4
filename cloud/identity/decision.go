package identity

import (
	"crypto/subtle"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/api/identity"
)

// Reason is why somebody stays out, as a label of metrics and in the log.
type Reason string

// The reasons. The first ones are found before anything is asked of the records.
const (
	ReasonGarbage      Reason = "garbage"         // not a question of the hub, or a credential that cannot be read
	ReasonConnection   Reason = "connection-type" // not a leaf
	ReasonNoCredential Reason = "no-credential"
	ReasonSignature    Reason = "signature" // the key did not sign the server's nonce
	ReasonNodeName     Reason = "node-name" // not what a Node can be called
	// ReasonServerName: the leaf calls itself other than its node. The hub closes the older of two links of one name.
	ReasonServerName Reason = "server-name"

	ReasonRevokedKey  Reason = "revoked-key"
	ReasonRevokedNode Reason = "revoked-node"
	ReasonUnknown     Reason = "unknown"     // no record of the node, and no token
	ReasonOtherKey    Reason = "other-key"   // the node has another key
	ReasonTaken       Reason = "taken"       // the node is there already, and the token does not name it
	ReasonForeignKey  Reason = "foreign-key" // the key is another node

	ReasonTokenUnknown Reason = "token-unknown"
	ReasonTokenWrong   Reason = "token-wrong" // the id is known, the secret is not this
	ReasonTokenExpired Reason = "token-expired"
	ReasonTokenUsed    Reason = "token-used"
	ReasonTokenNode    Reason = "token-node" // it is for another node
	ReasonLocked       Reason = "locked"     // too many wrong tokens
	ReasonNotReady     Reason = "not-ready"  // tokens are not read yet; the gateway dials again

	ReasonExpired Reason = "expired" // for longer than the policy's window
	ReasonCaller  Reason = "caller"  // asked for another key than the link's
	ReasonProof   Reason = "proof"   // a signature of the request is wrong
	ReasonSoon    Reason = "too-soon"
)

// placement is where a link is put.
type placement string

const (
	placeRefused placement = "refused"
	placeCell    placement = "cell"
	placeLobby   placement = "lobby"
)

// decisionInput is all that a decision hangs on.
type decisionInput struct {
	now time.Time
	// credential has proved to hold Key.
	credential identity.Credential
	// record of the node; nil is unknown.
	record *Record
	// revoked reports whether the key is rejected permanently.
	revoked bool
	// token is the one that was shown, nil if there is none of that id; secret is what was said after the dot.
	token  *identity.Token
	secret string
	// tokensReady is that tokens are known here.
	tokensReady bool
	// locked says that there were too many wrong tokens to look at another.
	locked bool
}

// decidePlace says where a link belongs. A record's key is the node as long as it has not expired. After that it gets into the
// lobby, always: renewal there says whether it may still renew, and if not, what to do. A token leads into the lobby, too.
func decidePlace(in decisionInput) (placement, Reason) {
	why := keyStatus(in.record, in.credential.Key, in.revoked, in.now)
	switch {
	case why == "":
		return placeCell, ""
	case why == ReasonExpired:
		return placeLobby, ""
	case why == ReasonRevokedKey:
		return placeRefused, why
	case in.credential.Token == "":
		return placeRefused, why
	case in.locked:
		return placeRefused, ReasonLocked
	case !in.tokensReady:
		return placeRefused, ReasonNotReady
	}
	if why := checkToken(in.token, in.secret, in.credential.Node, in.credential.Key, in.now); why != "" {
		return placeRefused, why
	}
	if why == ReasonRevokedNode && in.token.Node != in.credential.Node {
		return placeRefused, why
	}
	return placeLobby, ""
}

// keyStatus says why a key is not a node now; "" if it is.
func keyStatus(record *Record, key string, revoked bool, now time.Time) Reason {
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

// checkToken says why a token does not let a key in as a node; "" if it does. A use that was made counts for who made it, so that
// the answer may get lost.
func checkToken(token *identity.Token, secret, node, key string, now time.Time) Reason {
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

// isTokenGuess says that a refusal is what somebody who guesses tokens gets.
func isTokenGuess(reason Reason) bool {
	return reason == ReasonTokenUnknown || reason == ReasonTokenWrong
}

// isNodeName says that a Node can be called so. Such a name is never a key, which has capitals.
func isNodeName(node string) bool { return len(validation.IsDNS1123Subdomain(node)) == 0 }
