package callout

import (
	"time"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
)

// placement is the account in which a link is placed.
type placement string

const (
	placeRefused placement = "refused"
	placeCell    placement = "cell"
	placeLobby   placement = "lobby"
)

// decisionInput is everything that a decision depends on.
type decisionInput struct {
	now time.Time
	// credential is the sender's, who has proved to hold its Key.
	credential api.Credential
	// record is the node's record; nil if there is none.
	record *identity.Record
	// revoked reports whether the key is rejected permanently.
	revoked bool
	// token is the one that was presented, nil if there is none with that id; secret is the part after the dot.
	token  *api.Token
	secret string
	// tokensReady: the tokens have been read.
	tokensReady bool
	// locked: there were too many wrong tokens to check another.
	locked bool
}

// decidePlace returns the placement of a link. A record's key authenticates as its node until it expires. After that it
// is always admitted to the lobby: renewal there decides whether it may still renew, and if not, tells the operator
// what to do. A token also admits to the lobby.
func decidePlace(in decisionInput) (placement, identity.Reason) {
	why := identity.KeyStatus(in.record, in.credential.Key, in.revoked, in.now)
	switch {
	case why == "":
		return placeCell, ""
	case why == identity.ReasonExpired:
		return placeLobby, ""
	case why == identity.ReasonRevokedKey:
		return placeRefused, why
	case in.credential.Token == "":
		return placeRefused, why
	case in.locked:
		return placeRefused, identity.ReasonLocked
	case !in.tokensReady:
		return placeRefused, identity.ReasonNotReady
	}
	if why := identity.CheckToken(in.token, in.secret, in.credential.Node, in.credential.Key, in.now); why != "" {
		return placeRefused, why
	}
	if why == identity.ReasonRevokedNode && in.token.Node != in.credential.Node {
		return placeRefused, why
	}
	return placeLobby, ""
}

// isTokenGuess reports whether a refusal is one that guessing tokens causes.
func isTokenGuess(reason identity.Reason) bool {
	return reason == identity.ReasonTokenUnknown || reason == identity.ReasonTokenWrong
}
