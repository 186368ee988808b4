package identity

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams"
)

const (
	// calloutSubject and calloutAudience are the hub's own.
	calloutSubject  = "$SYS.REQ.USER.AUTH"
	calloutAudience = "nats-authorization-request"
	// calloutGroup is the queue group of all cloudcores: one of them answers.
	calloutGroup = "cloudcore"
	// calloutQueueSize holds questions that wait. One takes about 1 ms of a core (BenchmarkAnswer), so these are more than the hub
	// waits for; what it has given up is dropped.
	calloutQueueSize = 1 << 13
	// maxRequest bounds what is read: a question repeats the CONNECT, which the hub takes up to 4 KiB.
	maxRequest = 64 << 10
	// leafKind is what the hub calls a leaf in a question.
	leafKind = "Leafnode"
)

// TokenLookup looks up a bootstrap token by its id, in memory; nil is that there is none. Without ready nobody knows yet.
type TokenLookup func(ctx context.Context, id string) (token *identity.Token, ready bool)

// Policy is what may be chosen.
type Policy struct {
	// Cells is the number of cells of the hub.
	Cells int
	// KeyLifetime is how long a key is enough; RenewWindow how long after that it may be renewed, 0 not at all.
	KeyLifetime, RenewWindow time.Duration
}

// Callout answers the hub. Make it with NewCallout, run it with Start.
type Callout struct {
	nc        *nats.Conn
	issuer    nkeys.KeyPair
	issuerKey string // the issuer's public key
	policy    Policy
	records   *Records
	tokens    TokenLookup
	links     *Links
	keySeen   func(node, key string)
	throttle  *tokenThrottle
	logDedup  *logDedup
	metrics   *Metrics
	log       *zap.Logger
}

// NewCallout makes who answers. nc belongs to the hub's account of the callout, and issuer is the key that the hub believes.
// seen hears that a node's newest key was seen on a link while the one before it still counts; it must not block.
func NewCallout(nc *nats.Conn, issuer nkeys.KeyPair, policy Policy, records *Records, tokens TokenLookup, links *Links,
	seen func(node, key string), metrics *Metrics, log *zap.Logger,
) (*Callout, error) {
	self, err := issuer.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("callout: issuer: %w", err)
	}
	return &Callout{
		nc: nc, issuer: issuer, issuerKey: self, policy: policy, records: records, tokens: tokens, links: links, keySeen: seen,
		throttle: newTokenThrottle(time.Now, metrics.countLockout), logDedup: newLogDedup(time.Now), metrics: metrics, log: log,
	}, nil
}

// Start answers from when all records are read until ctx ends, and then returns nil. A hub that gets no answer, because no
// cloudcore is there, refuses, and the gateway dials again: so nobody has to be told that one is back.
func (c *Callout) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.records.Synced():
	}
	incoming := make(chan queuedRequest, calloutQueueSize)
	sub, err := c.nc.QueueSubscribe(calloutSubject, calloutGroup, func(msg *nats.Msg) {
		select {
		case incoming <- queuedRequest{msg, time.Now()}:
		default:
			c.metrics.countAnswer("late") // the hub will have given up long before its turn
		}
	})
	if err != nil {
		return fmt.Errorf("answer the hub: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	c.log.Info("answering the hub", zap.Int("identities", len(c.records.All())))
	var g errgroup.Group
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case question := <-incoming:
					c.serveRequest(ctx, question)
				}
			}
		})
	}
	return g.Wait()
}

// queuedRequest is a question and when it came.
type queuedRequest struct {
	*nats.Msg
	receivedAt time.Time
}

// attempt is what is known of a link that wants in.
type attempt struct {
	claims     *jwt.AuthorizationRequestClaims
	credential identity.Credential
}

func (a attempt) logFields() []zap.Field {
	if a.claims == nil {
		return nil
	}
	return []zap.Field{
		zap.String("node", sanitizeText(a.credential.Node)), zap.String("key", sanitizeText(a.credential.Key)),
		zap.String("remote", a.claims.ClientInformation.Host), zap.String("server", a.claims.Server.Name),
	}
}

func (c *Callout) serveRequest(ctx context.Context, msg queuedRequest) {
	began := time.Now()
	a, reason := c.parseRequest(msg.Data)
	if a.claims == nil {
		c.metrics.countRefusal(reason)
		c.log.Warn("not a question of the hub", zap.String("reason", string(reason)))
		return
	}
	if isLate(a.claims, began.Sub(msg.receivedAt)) {
		c.metrics.countAnswer("late") // the hub has refused it
		return
	}
	where := placeRefused
	if reason == "" {
		where, reason = c.evaluateAttempt(ctx, a, began)
	}
	if where == placeRefused {
		c.metrics.countRefusal(reason)
		if c.logDedup.isFirst(string(reason) + " " + a.credential.Node + " " + a.credential.Key + " " + networkOf(a.claims.ClientInformation.Host)) {
			c.log.Warn("link refused", append(a.logFields(), zap.String("reason", string(reason)))...)
		}
	}
	if err := c.sendAnswer(msg.Msg, a, where, reason); err != nil {
		c.log.Warn("hub not answered", append(a.logFields(), zap.Error(err))...)
		return
	}
	c.metrics.observeAnswer(where, time.Since(began))
}

// isLate says that the hub no longer waits for the answer to a question that was here for so long. The hub's clock is not compared
// with this machine's.
func isLate(question *jwt.AuthorizationRequestClaims, here time.Duration) bool {
	return question.Expires != 0 && here > time.Duration(question.Expires-question.IssuedAt)*time.Second
}

// parseRequest takes a question apart, and proves that its key has signed. What comes with a nil question is no question.
func (c *Callout) parseRequest(data []byte) (attempt, Reason) {
	if len(data) > maxRequest {
		return attempt{}, ReasonGarbage
	}
	question, err := jwt.DecodeAuthorizationRequestClaims(string(data)) // checks the signature by Issuer
	if err != nil || question.Issuer != question.Server.ID || question.Audience != calloutAudience || question.Subject != c.issuerKey ||
		!nkeys.IsValidPublicUserKey(question.UserNkey) || !nkeys.IsValidPublicServerKey(question.Server.ID) {
		return attempt{}, ReasonGarbage
	}
	a := attempt{claims: question}
	if question.ClientInformation.Kind != leafKind {
		return a, ReasonConnection
	}
	if question.ConnectOptions.SignedNonce == "" {
		return a, ReasonNoCredential
	}
	who, signature, err := identity.DecodeCredential(question.ConnectOptions.SignedNonce)
	if err != nil || !nkeys.IsValidPublicUserKey(who.Key) {
		return a, ReasonGarbage
	}
	if a.credential = who; !isNodeName(who.Node) {
		return a, ReasonNodeName
	}
	if question.ConnectOptions.Name != who.Node {
		return a, ReasonServerName
	}
	// The hub does not look at the signature when it asks.
	nonce := question.ClientInformation.Nonce
	if nonce == "" || !verifySignature(who.Key, []byte(nonce), signature) {
		return a, ReasonSignature
	}
	return a, ""
}

// evaluateAttempt asks the records.
func (c *Callout) evaluateAttempt(ctx context.Context, a attempt, now time.Time) (placement, Reason) {
	in := decisionInput{tokensReady: true, now: now, credential: a.credential, record: c.records.Lookup(a.credential.Node), revoked: c.records.IsRevoked(a.credential.Key)}
	from := a.claims.ClientInformation.Host
	id, secret, isToken := identity.SplitToken(a.credential.Token)
	if !isToken {
		id = "" // a stranger's text is no key of a map
	}
	if a.credential.Token != "" {
		if in.locked = !c.throttle.allow(from, id); !in.locked && isToken {
			in.token, in.tokensReady = c.tokens(ctx, id)
			in.secret = secret
		}
	}
	where, reason := decidePlace(in)
	if isTokenGuess(reason) {
		c.throttle.recordFailure(from, id)
	}
	if where == placeCell && in.record.Key == a.credential.Key && in.record.Previous != "" {
		c.keySeen(a.credential.Node, a.credential.Key)
	}
	return where, reason
}

// sendAnswer tells the hub, and before that the other replicas whose link it is.
func (c *Callout) sendAnswer(msg *nats.Msg, a attempt, where placement, reason Reason) error {
	response := jwt.NewAuthorizationResponseClaims(a.claims.UserNkey)
	response.Audience = a.claims.Server.ID
	switch where {
	case placeCell:
		account := streams.CellAccount(a.credential.Node, c.policy.Cells)
		publish, subscribe := streams.NodePermissions(a.credential.Node)
		if err := c.links.announceLink(admission{
			Server: a.claims.Server.ID, CID: a.claims.ClientInformation.ID, Node: a.credential.Node, Key: a.credential.Key,
			Nonce: a.claims.ClientInformation.Nonce,
		}); err != nil {
			return err
		}
		user, err := c.signUser(a.claims.UserNkey, a.credential.Node, account, publish, subscribe)
		if err != nil {
			return err
		}
		response.Jwt = user
	case placeLobby:
		publish, subscribe := streams.LobbyPermissions(a.credential.Key)
		user, err := c.signUser(a.claims.UserNkey, a.credential.Key, streams.LobbyAccount, publish, subscribe)
		if err != nil {
			return err
		}
		response.Jwt = user
	default:
		response.Error = string(reason) // the hub logs it; the leaf hears only that it is refused
	}
	text, err := response.Encode(c.issuer)
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	return msg.Respond([]byte(text))
}

// signUser makes the user that a link becomes. It has no expiry: a link outlives a renewal of its key.
func (c *Callout) signUser(nkey, name, account string, publish, subscribe []string) (string, error) {
	user := jwt.NewUserClaims(nkey)
	user.Name = name
	user.Audience = account
	user.AllowedConnectionTypes = jwt.StringList{jwt.ConnectionTypeLeafnode, jwt.ConnectionTypeLeafnodeWS}
	user.Pub.Allow.Add(publish...)
	user.Sub.Allow.Add(subscribe...)
	text, err := user.Encode(c.issuer)
	if err != nil {
		return "", fmt.Errorf("sign a user: %w", err)
	}
	return text, nil
}

// sanitizeText makes what a stranger says fit for a log.
func sanitizeText(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}
