// Package enrolment is the identity of a simulated gateway: it enrols with a bootstrap token and renews its key, with the messages that
// edgecore sends, and keeps the key in memory.
package enrolment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams/call"
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

// Enrol has the key recorded. nc is the client of a link in the lobby, whose inboxes have the key's name.
func (i *Identity) Enrol(ctx context.Context, nc *nats.Conn) error {
	i.mu.Lock()
	request := identity.EnrolRequest{Node: i.node, Key: i.current.public, Token: i.token}
	signature, err := i.current.Sign(identity.Proof(identity.VerbEnrol, i.node, request.Key))
	i.mu.Unlock()
	if err != nil {
		return fmt.Errorf("sign: %w", err)
	}
	request.Signature = signature
	answer, err := sendRequest(ctx, nc, request.Key, identity.VerbEnrol, request)
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
	request := identity.RenewRequest{Node: i.node, Key: next.public, Current: current.public, Nonce: nonce}
	proof := identity.Proof(identity.VerbRenew, i.node, next.public)
	for _, s := range []struct {
		into *[]byte
		by   key
		text []byte
	}{{&request.Signature, next, proof}, {&request.Approval, current, proof}, {&request.Link, next, []byte(nonce)}} {
		if *s.into, err = s.by.Sign(s.text); err != nil {
			return false, fmt.Errorf("sign: %w", err)
		}
	}
	answer, err := sendRequest(ctx, nc, i.node, identity.VerbRenew, request)
	if err != nil {
		return false, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.current, i.renewAt = next, renewTime(answer, time.Now())
	i.renewed++
	return answer.Carried, nil
}

// sendRequest sends one request; caller is the node, or in the lobby the key.
func sendRequest(ctx context.Context, nc *nats.Conn, caller, verb string, request any) (answer identity.Enrolment, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	switch err := call.Call(ctx, nc, caller, verb, request, &answer); {
	case err != nil:
		return answer, err
	case answer.Reason != "":
		return answer, &RefusedError{answer.Reason}
	case !answer.Expires.After(answer.Now):
		return answer, errors.New("the answer says neither yes nor no")
	}
	return answer, nil
}

// renewTime returns when a key is renewed, by this machine's clock.
func renewTime(answer identity.Enrolment, now time.Time) time.Time {
	life := answer.Expires.Sub(answer.Now)
	return now.Add(time.Duration(float64(life) * (renewShare + jitterShare*(2*rand.Float64()-1)))) //nolint:mnd // -1 to 1
}
