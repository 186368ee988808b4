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
	// calloutQueue holds questions that wait. One takes about 1 ms of a core (BenchmarkAnswer), so these are more than the hub
	// waits for; what it has given up is dropped.
	calloutQueue = 1 << 13
	// maxQuestion bounds what is read: a question repeats the CONNECT, which the hub takes up to 4 KiB.
	maxQuestion = 64 << 10
	// leafKind is what the hub calls a leaf in a question.
	leafKind = "Leafnode"
)

// Tokens looks up a bootstrap token by its id, in memory; nil is that there is none. Without ready nobody knows yet.
type Tokens func(ctx context.Context, id string) (token *identity.Token, ready bool)

// Policy is what may be chosen.
type Policy struct {
	// Cells is the number of cells of the hub.
	Cells int
	// KeyLifetime is how long a key is enough; RenewWindow how long after that it may be renewed, 0 not at all.
	KeyLifetime, RenewWindow time.Duration
}

// Callout answers the hub. Make it with NewCallout, run it with Start.
type Callout struct {
	nc      *nats.Conn
	issuer  nkeys.KeyPair
	self    string // the issuer's public key
	policy  Policy
	records *Records
	tokens  Tokens
	links   *Links
	seen    func(node, key string)
	guesses *guesses
	quiet   *quiet
	metrics *Metrics
	log     *zap.Logger
}

// NewCallout makes who answers. nc belongs to the hub's account of the callout, and issuer is the key that the hub believes.
// seen hears that a node's newest key was seen on a link while the one before it still counts; it must not block.
func NewCallout(nc *nats.Conn, issuer nkeys.KeyPair, policy Policy, records *Records, tokens Tokens, links *Links,
	seen func(node, key string), metrics *Metrics, log *zap.Logger,
) (*Callout, error) {
	self, err := issuer.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("callout: issuer: %w", err)
	}
	return &Callout{
		nc: nc, issuer: issuer, self: self, policy: policy, records: records, tokens: tokens, links: links, seen: seen,
		guesses: newGuesses(time.Now, metrics.locked), quiet: newQuiet(time.Now), metrics: metrics, log: log,
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
	incoming := make(chan asked, calloutQueue)
	sub, err := c.nc.QueueSubscribe(calloutSubject, calloutGroup, func(msg *nats.Msg) {
		select {
		case incoming <- asked{msg, time.Now()}:
		default:
			c.metrics.answer("late") // the hub will have given up long before its turn
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
					c.serve(ctx, question)
				}
			}
		})
	}
	return g.Wait()
}

// asked is a question and when it came.
type asked struct {
	*nats.Msg
	at time.Time
}

// attempt is what is known of a link that wants in.
type attempt struct {
	question *jwt.AuthorizationRequestClaims
	who      identity.Credential
}

func (a attempt) fields() []zap.Field {
	if a.question == nil {
		return nil
	}
	return []zap.Field{
		zap.String("node", printable(a.who.Node)), zap.String("key", printable(a.who.Key)),
		zap.String("remote", a.question.ClientInformation.Host), zap.String("server", a.question.Server.Name),
	}
}

func (c *Callout) serve(ctx context.Context, msg asked) {
	began := time.Now()
	a, reason := c.read(msg.Data)
	if a.question == nil {
		c.metrics.refuse(reason)
		c.log.Warn("not a question of the hub", zap.String("reason", string(reason)))
		return
	}
	if late(a.question, began.Sub(msg.at)) {
		c.metrics.answer("late") // the hub has refused it
		return
	}
	where := nowhere
	if reason == "" {
		where, reason = c.judge(ctx, a, began)
	}
	if where == nowhere {
		c.metrics.refuse(reason)
		if c.quiet.first(string(reason) + " " + a.who.Node + " " + a.who.Key + " " + network(a.question.ClientInformation.Host)) {
			c.log.Warn("link refused", append(a.fields(), zap.String("reason", string(reason)))...)
		}
	}
	if err := c.answer(msg.Msg, a, where, reason); err != nil {
		c.log.Warn("hub not answered", append(a.fields(), zap.Error(err))...)
		return
	}
	c.metrics.answered(where, time.Since(began))
}

// late says that the hub no longer waits for the answer to a question that was here for so long. The hub's clock is not compared
// with this machine's.
func late(question *jwt.AuthorizationRequestClaims, here time.Duration) bool {
	return question.Expires != 0 && here > time.Duration(question.Expires-question.IssuedAt)*time.Second
}

// read takes a question apart, and proves that its key has signed. What comes with a nil question is no question.
func (c *Callout) read(data []byte) (attempt, Reason) {
	if len(data) > maxQuestion {
		return attempt{}, ReasonGarbage
	}
	question, err := jwt.DecodeAuthorizationRequestClaims(string(data)) // checks the signature by Issuer
	if err != nil || question.Issuer != question.Server.ID || question.Audience != calloutAudience || question.Subject != c.self ||
		!nkeys.IsValidPublicUserKey(question.UserNkey) || !nkeys.IsValidPublicServerKey(question.Server.ID) {
		return attempt{}, ReasonGarbage
	}
	a := attempt{question: question}
	if question.ClientInformation.Kind != leafKind {
		return a, ReasonConnection
	}
	if question.ConnectOptions.SignedNonce == "" {
		return a, ReasonNoCredential
	}
	who, signature, err := identity.Shown(question.ConnectOptions.SignedNonce)
	if err != nil || !nkeys.IsValidPublicUserKey(who.Key) {
		return a, ReasonGarbage
	}
	if a.who = who; !nameable(who.Node) {
		return a, ReasonNodeName
	}
	if question.ConnectOptions.Name != who.Node {
		return a, ReasonServerName
	}
	// The hub does not look at the signature when it asks.
	nonce := question.ClientInformation.Nonce
	if nonce == "" || !proven(who.Key, []byte(nonce), signature) {
		return a, ReasonSignature
	}
	return a, ""
}

// judge asks the records.
func (c *Callout) judge(ctx context.Context, a attempt, now time.Time) (place, Reason) {
	in := input{ready: true, now: now, who: a.who, record: c.records.Of(a.who.Node), revoked: c.records.Revoked(a.who.Key)}
	from := a.question.ClientInformation.Host
	id, secret, isToken := identity.SplitToken(a.who.Token)
	if !isToken {
		id = "" // a stranger's text is no key of a map
	}
	if a.who.Token != "" {
		if in.locked = !c.guesses.allowed(from, id); !in.locked && isToken {
			in.token, in.ready = c.tokens(ctx, id)
			in.secret = secret
		}
	}
	where, reason := decide(in)
	if guessed(reason) {
		c.guesses.count(from, id)
	}
	if where == cell && in.record.Key == a.who.Key && in.record.Previous != "" {
		c.seen(a.who.Node, a.who.Key)
	}
	return where, reason
}

// answer tells the hub, and before that the other replicas whose link it is.
func (c *Callout) answer(msg *nats.Msg, a attempt, where place, reason Reason) error {
	response := jwt.NewAuthorizationResponseClaims(a.question.UserNkey)
	response.Audience = a.question.Server.ID
	switch where {
	case cell:
		account := streams.CellAccount(a.who.Node, c.policy.Cells)
		publish, subscribe := streams.NodePermissions(a.who.Node)
		if err := c.links.announce(admission{
			Server: a.question.Server.ID, CID: a.question.ClientInformation.ID, Node: a.who.Node, Key: a.who.Key,
			Nonce: a.question.ClientInformation.Nonce,
		}); err != nil {
			return err
		}
		user, err := c.user(a.question.UserNkey, a.who.Node, account, publish, subscribe)
		if err != nil {
			return err
		}
		response.Jwt = user
	case lobby:
		publish, subscribe := streams.LobbyPermissions(a.who.Key)
		user, err := c.user(a.question.UserNkey, a.who.Key, streams.LobbyAccount, publish, subscribe)
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

// user makes the user that a link becomes. It has no expiry: a link outlives a renewal of its key.
func (c *Callout) user(nkey, name, account string, publish, subscribe []string) (string, error) {
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

// printable makes what a stranger says fit for a log.
func printable(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}
