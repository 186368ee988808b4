package callout

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/cloud/identity/links"
	"github.com/frond-edge/frond/cloud/identity/throttle"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// calloutSubject and calloutAudience are defined by the hub.
	calloutSubject  = "$SYS.REQ.USER.AUTH"
	calloutAudience = "nats-authorization-request"
	// calloutGroup is the queue group of all cloudcores: one of them answers each request.
	calloutGroup = "cloudcore"
	// calloutQueueSize bounds the waiting requests. One takes about 1 ms of a core (BenchmarkAnswer), so this is more
	// than the hub waits for; requests that the hub has given up are dropped.
	calloutQueueSize = 1 << 13
	// maxRequest bounds the size of a request: it repeats the CONNECT, which the hub accepts up to 4 KiB.
	maxRequest = 64 << 10
	// leafKind is the hub's name of a leaf connection in a request.
	leafKind = "Leafnode"
)

// TokenLookup looks up a bootstrap token by its id, in memory; nil if there is none. ready is false while the tokens
// are not read yet.
type TokenLookup func(ctx context.Context, id string) (token *api.Token, ready bool)

// Records are the records of all nodes' keys, as this replica knows them; identity.Records is one.
type Records interface {
	// Lookup returns the record of a node, or nil.
	Lookup(node string) *identity.Record
	// IsRevoked reports whether a key is rejected permanently.
	IsRevoked(key string) bool
	// AwaitKey waits until a key is recorded for a node, or ctx ends.
	AwaitKey(ctx context.Context, node, key string)
	// All returns each record, in no order.
	All() []*identity.Record
	// Synced returns a channel that closes when all records were read once.
	Synced() <-chan struct{}
}

// Announcer announces an admission to all replicas before the hub is answered.
type Announcer interface {
	Announce(a links.Admission) error
}

// Callout answers the hub's auth callout. Make it with New, run it with Start.
type Callout struct {
	nc        *nats.Conn
	issuer    nkeys.KeyPair
	issuerKey string // the issuer's public key
	policy    identity.Policy
	records   Records
	tokens    TokenLookup
	announcer Announcer
	keySeen   func(node, key string)
	throttle  *throttle.TokenThrottle
	logDedup  *throttle.LogDedup
	counts    *identity.Metrics
	metrics   *Metrics
	log       *zap.Logger
}

// New creates a Callout. nc belongs to the hub's account of the callout, and issuer is the key that the hub
// trusts. seen is called when a link uses a node's newest key while the previous one is still valid; it must not block.
func New(nc *nats.Conn, issuer nkeys.KeyPair, policy identity.Policy, records Records, tokens TokenLookup, announcer Announcer,
	seen func(node, key string), counts *identity.Metrics, metrics *Metrics, log *zap.Logger,
) (*Callout, error) {
	self, err := issuer.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("callout: issuer: %w", err)
	}
	return &Callout{
		nc: nc, issuer: issuer, issuerKey: self, policy: policy, records: records, tokens: tokens, announcer: announcer, keySeen: seen,
		throttle: throttle.NewTokenThrottle(time.Now, counts.CountLockout), logDedup: throttle.NewLogDedup(time.Now), counts: counts, metrics: metrics, log: log,
	}, nil
}

// Start answers from when all records are read until ctx ends, and then returns nil. If no cloudcore answers, the hub
// refuses the link, and the gateway dials again: a returning cloudcore therefore needs no announcement.
func (c *Callout) Start(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-c.records.Synced():
	}
	incoming := make(chan queuedRequest, calloutQueueSize)
	sub, err := c.nc.QueueSubscribe(calloutSubject, calloutGroup, func(msg *nats.Msg) {
		select {
		case incoming <- queuedRequest{Msg: msg, receivedAt: time.Now()}:
		default:
			c.metrics.countAnswer("late") // the hub will have given up long before this request is processed
		}
	})
	if err != nil {
		return fmt.Errorf("answer the hub: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	c.log.Info("answering the hub", zap.Int("identities", len(c.records.All())))
	var g errgroup.Group
	waits := newRecordWaits(c.records, c.metrics, incoming, &g)
	for range runtime.GOMAXPROCS(0) {
		g.Go(func() error {
			for {
				select {
				case <-ctx.Done():
					return nil
				case question := <-incoming:
					c.serveRequest(ctx, question, waits)
				}
			}
		})
	}
	return g.Wait()
}

// queuedRequest is a request and when it arrived.
type queuedRequest struct {
	*nats.Msg
	receivedAt time.Time
	// waited says that the record was awaited already.
	waited bool
}

// attempt is what is known of a link that requests admission.
type attempt struct {
	claims     *jwt.AuthorizationRequestClaims
	credential api.Credential
}

func (a attempt) logFields() []zap.Field {
	if a.claims == nil {
		return nil
	}
	return []zap.Field{
		zap.String("node", identity.SanitizeText(a.credential.Node)), zap.String("key", identity.SanitizeText(a.credential.Key)),
		zap.String("remote", a.claims.ClientInformation.Host), zap.String("server", a.claims.Server.Name),
	}
}

func (c *Callout) serveRequest(ctx context.Context, msg queuedRequest, waits *recordWaits) {
	began := time.Now()
	a, reason := c.parseRequest(msg.Data)
	if a.claims == nil {
		c.counts.CountRefusal(reason)
		c.log.Warn("not a question of the hub", zap.String("reason", string(reason)))
		return
	}
	if isLate(a.claims, began.Sub(msg.receivedAt)) {
		c.metrics.countAnswer("late") // the hub has refused it already
		return
	}
	where := placeRefused
	if reason == "" {
		where, reason = c.evaluateAttempt(ctx, a, began)
	}
	if where == placeRefused && waits.hold(ctx, msg, a, reason) {
		return
	}
	if where == placeRefused {
		c.counts.CountRefusal(reason)
		if c.logDedup.IsFirst(string(reason) + " " + a.credential.Node + " " + a.credential.Key + " " + throttle.NetworkOf(a.claims.ClientInformation.Host)) {
			c.log.Warn("link refused", append(a.logFields(), zap.String("reason", string(reason)))...)
		}
	}
	if err := c.sendAnswer(msg.Msg, a, where, reason); err != nil {
		c.log.Warn("hub not answered", append(a.logFields(), zap.Error(err))...)
		return
	}
	c.metrics.observeAnswer(where, time.Since(began))
}

// isLate reports whether the hub no longer waits for the answer to a request that has been here for a time. The hub's
// clock is not compared with this machine's.
func isLate(question *jwt.AuthorizationRequestClaims, here time.Duration) bool {
	return question.Expires != 0 && here > time.Duration(question.Expires-question.IssuedAt)*time.Second
}

// parseRequest parses a request and verifies that the sender holds its key. A nil claims pointer means that the message is no request.
func (c *Callout) parseRequest(data []byte) (attempt, identity.Reason) {
	if len(data) > maxRequest {
		return attempt{}, identity.ReasonGarbage
	}
	question, err := jwt.DecodeAuthorizationRequestClaims(string(data)) // checks the signature by Issuer
	if err != nil || question.Issuer != question.Server.ID || question.Audience != calloutAudience || question.Subject != c.issuerKey ||
		!nkeys.IsValidPublicUserKey(question.UserNkey) || !nkeys.IsValidPublicServerKey(question.Server.ID) {
		return attempt{}, identity.ReasonGarbage
	}
	a := attempt{claims: question}
	if question.ClientInformation.Kind != leafKind {
		return a, identity.ReasonConnection
	}
	if question.ConnectOptions.SignedNonce == "" {
		return a, identity.ReasonNoCredential
	}
	who, signature, err := api.DecodeCredential(question.ConnectOptions.SignedNonce)
	if err != nil || !nkeys.IsValidPublicUserKey(who.Key) {
		return a, identity.ReasonGarbage
	}
	if a.credential = who; !identity.IsNodeName(who.Node) {
		return a, identity.ReasonNodeName
	}
	if question.ConnectOptions.Name != who.Node {
		return a, identity.ReasonServerName
	}
	// The hub does not verify the signature before it asks.
	nonce := question.ClientInformation.Nonce
	if nonce == "" || !identity.VerifySignature(who.Key, []byte(nonce), signature) {
		return a, identity.ReasonSignature
	}
	return a, ""
}

// evaluateAttempt decides on an attempt from the records.
func (c *Callout) evaluateAttempt(ctx context.Context, a attempt, now time.Time) (placement, identity.Reason) {
	in := decisionInput{tokensReady: true, now: now, credential: a.credential, record: c.records.Lookup(a.credential.Node), revoked: c.records.IsRevoked(a.credential.Key)}
	from := a.claims.ClientInformation.Host
	id, secret, isToken := api.SplitToken(a.credential.Token)
	if !isToken {
		id = "" // an unverified text must not become a key of a map
	}
	if a.credential.Token != "" {
		if in.locked = !c.throttle.Allow(from, id); !in.locked && isToken {
			in.token, in.tokensReady = c.tokens(ctx, id)
			in.secret = secret
		}
	}
	where, reason := decidePlace(in)
	if isTokenGuess(reason) {
		c.throttle.RecordFailure(from, id)
	}
	if where == placeCell && in.record.Key == a.credential.Key && in.record.Previous != "" {
		c.keySeen(a.credential.Node, a.credential.Key)
	}
	return where, reason
}

// sendAnswer sends the answer to the hub, and before that announces the link's node to the other replicas.
func (c *Callout) sendAnswer(msg *nats.Msg, a attempt, where placement, reason identity.Reason) error {
	response := jwt.NewAuthorizationResponseClaims(a.claims.UserNkey)
	response.Audience = a.claims.Server.ID
	switch where {
	case placeCell:
		account := subject.CellAccount(a.credential.Node, c.policy.Cells)
		publish, subscribe := subject.NodePermissions(a.credential.Node)
		if err := c.announcer.Announce(links.Admission{
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
		publish, subscribe := subject.LobbyPermissions(a.credential.Key)
		user, err := c.signUser(a.claims.UserNkey, a.credential.Key, subject.LobbyAccount, publish, subscribe)
		if err != nil {
			return err
		}
		response.Jwt = user
	default:
		response.Error = string(reason) // the hub logs it; the leaf learns only that it is refused
	}
	text, err := response.Encode(c.issuer)
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	return msg.Respond([]byte(text))
}

// signUser creates the signed user of a link. It has no expiry: a link outlives a renewal of its key.
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
