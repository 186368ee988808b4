// Package enrolment is the identity of a simulated gateway: it enrols with a bootstrap token and renews its key, with the requests of
// edgecore (package identitycall), and keeps the key in memory.
package enrolment

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/identitycall"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// callTimeout limits one call: a cloudcore writes to the Kubernetes API before it answers.
	callTimeout = 10 * time.Second
	// renewShare is the part of a key's life after which it is renewed; a twelfth of it earlier or later, as edgecore does.
	renewShare, jitterShare = 2.0 / 3, 1.0 / 12
)

// RefusedError is the cloud's refusal; the reason is for operators.
type RefusedError struct{ Reason string }

// Error implements error.
func (e *RefusedError) Error() string { return "the cloud refuses this gateway: " + e.Reason }

// key is an nkey with its public half.
type key struct {
	nkeys.KeyPair
	public string
}

// signing returns the key as that of a request.
func (k key) signing() identitycall.Key { return identitycall.Key{Public: k.public, Sign: k.Sign} }

func newKey() (key, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return key{}, fmt.Errorf("make a key: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return key{}, fmt.Errorf("make a key: %w", err)
	}
	return key{pair, public}, nil
}

// Identity is the identity of one gateway.
type Identity struct {
	node  string
	token string

	mu       sync.Mutex // guards all fields below
	current  key
	enrolled bool
	// renewAt is when the key is to be renewed.
	renewAt time.Time
	renewed int
}

// New makes a key for a gateway that joins with a token.
func New(node, token string) (*Identity, error) {
	k, err := newKey()
	if err != nil {
		return nil, err
	}
	return &Identity{node: node, token: token, current: k}, nil
}

// Key returns the public key.
func (i *Identity) Key() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.current.public
}

// Enrolled reports whether the cloud has recorded the key.
func (i *Identity) Enrolled() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.enrolled
}

// Renewed returns how often the key was renewed.
func (i *Identity) Renewed() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.renewed
}

// RenewAt returns when the key is to be renewed; zero before the enrolment.
func (i *Identity) RenewAt() time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.renewAt
}

// Credential answers a hub's nonce.
func (i *Identity) Credential(nonce []byte) ([]byte, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	shown := identity.Credential{Node: i.node, Key: i.current.public}
	if !i.enrolled {
		shown.Token = i.token
	}
	signature, err := i.current.Sign(nonce)
	if err != nil {
		return nil, fmt.Errorf("sign the hub's nonce: %w", err)
	}
	return identity.EncodeCredential(shown, signature)
}

// Enrol has the key recorded. nc is the client of a link whose inboxes have the key's name, as in the lobby; nonce returns the hub's nonce of
// the link that there is now. If the cloud has recorded the key already, because its answer was lost, the link is in the node's own cell.
func (i *Identity) Enrol(ctx context.Context, nc *nats.Conn, nonce func() string) error {
	i.mu.Lock()
	current := i.current
	i.mu.Unlock()
	cell := func(ctx context.Context, verb string, request, answer any) error {
		return callFromLobby(ctx, nc, i.node, verb, request, answer)
	}
	answer, err := accept(identitycall.Enrol(ctx, caller(nc, current.public), i.node, i.token, current.signing(), func(ctx context.Context) (identity.Enrolment, error) {
		return identitycall.Renew(ctx, limited(cell), i.node, current.signing(), current.signing(), nonce())
	}))
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.enrolled, i.renewAt = true, renewTime(answer, time.Now())
	return nil
}

// Renew replaces the key over a link in the node's own cell, which had this nonce. carried says that the link stays valid; otherwise the
// hub closes it, and the next one shows the new key.
func (i *Identity) Renew(ctx context.Context, nc *nats.Conn, nonce string) (carried bool, err error) {
	next, err := newKey()
	if err != nil {
		return false, err
	}
	i.mu.Lock()
	current := i.current
	i.mu.Unlock()
	answer, err := accept(identitycall.Renew(ctx, caller(nc, i.node), i.node, next.signing(), current.signing(), nonce))
	if err != nil {
		return false, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current, i.renewAt = next, renewTime(answer, time.Now())
	i.renewed++
	return answer.Carried, nil
}

// caller calls as a node, or in the lobby as a key.
func caller(nc *nats.Conn, name string) identitycall.Caller {
	return limited(func(ctx context.Context, verb string, request, answer any) error {
		return call.Call(ctx, nc, name, verb, request, answer)
	})
}

// limited limits the time of each call, as edgecore does.
func limited(send identitycall.Caller) identitycall.Caller {
	return func(ctx context.Context, verb string, request, answer any) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return send(ctx, verb, request, answer)
	}
}

// callFromLobby calls as a node over a client whose own inboxes have the name of a key: the reply comes to an inbox of the node.
func callFromLobby(ctx context.Context, nc *nats.Conn, node, verb string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("call %s: %w", verb, err)
	}
	replies, err := nc.SubscribeSync(subject.InboxPrefix(node) + "." + rand.Text())
	if err != nil {
		return fmt.Errorf("call %s: %w", verb, err)
	}
	defer func() { _ = replies.Unsubscribe() }() // fails only when the client is closed
	if err := nc.PublishRequest(subject.CallSubject(node, verb), replies.Subject, body); err != nil {
		return fmt.Errorf("call %s: %w", verb, err)
	}
	reply, err := replies.NextMsgWithContext(ctx)
	if err == nil {
		err = json.Unmarshal(reply.Data, answer)
	}
	if err != nil {
		return fmt.Errorf("call %s as %s: %w", verb, node, err)
	}
	return nil
}

// accept turns a refusal into an error.
func accept(answer identity.Enrolment, err error) (identity.Enrolment, error) {
	if err == nil && answer.Reason != "" {
		err = &RefusedError{answer.Reason}
	}
	return answer, err
}

// renewTime returns when a key is renewed, by this machine's clock.
func renewTime(answer identity.Enrolment, now time.Time) time.Time {
	life := answer.Expires.Sub(answer.Now)
	return now.Add(time.Duration(float64(life) * (renewShare + jitterShare*(2*mathrand.Float64()-1)))) //nolint:mnd // -1 to 1
}
