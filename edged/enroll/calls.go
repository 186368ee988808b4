package enroll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/subject"
)

// callTimeout limits one call: a cloudcore writes to the Kubernetes API before it answers.
const callTimeout = 10 * time.Second

// A RefusedError is the cloud's refusal of a gateway; the reason is for operators.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// isFinal reports whether a repeated call would get the same answer.
func isFinal(err error) bool {
	_, ca := errors.AsType[*hubca.CAError](err)
	_, clock := errors.AsType[*hubca.ClockError](err)
	return ca || clock
}

// linkTarget is the cell in which a link ends.
type linkTarget bool

const (
	ownCell   linkTarget = false // the node's own cell: subjects and inbox contain the node's name
	lobbyCell linkTarget = true  // the lobby: they contain the key
)

// cloudCalls are the requests of a gateway to any cloudcore, over its link.
type cloudCalls struct {
	node string
	keys *keyring
	link Link
	nc   *nats.Conn
}

// requestEnrolment asks to be recorded. A gateway whose earlier answer was lost is in its own cell already. Its key may be
// renewed there, which returns the same answer.
func (c *cloudCalls) requestEnrolment(ctx context.Context) (identity.Enrolment, error) {
	token, err := c.keys.readToken()
	if err != nil {
		return identity.Enrolment{}, err
	}
	key := c.keys.current()
	public := key.Public
	request := identity.EnrolRequest{Node: c.node, Key: public, Token: token}
	if request.Signature, err = key.Sign(identity.Proof(identity.VerbEnrol, c.node, public)); err != nil {
		return identity.Enrolment{}, fmt.Errorf("sign: %w", err)
	}
	var answer identity.Enrolment
	if err = c.callCloud(ctx, lobbyCell, identity.VerbEnrol, request, &answer); err == nil {
		return checkAnswer(answer, nil)
	}
	again, inCell := c.requestRenewal(ctx, ownCell, public)
	if inCell != nil {
		return answer, errors.Join(err, inCell)
	}
	return again, nil
}

// requestRenewal asks to extend the validity of a key, the current or the next one.
func (c *cloudCalls) requestRenewal(ctx context.Context, at linkTarget, public string) (identity.Enrolment, error) {
	wanted, current, nonce := c.keys.renewal(public)
	request := identity.RenewRequest{Node: c.node, Key: wanted.Public, Current: current.Public, Nonce: nonce}
	proof := identity.Proof(identity.VerbRenew, c.node, wanted.Public)
	var answer identity.Enrolment
	var err error
	if request.Signature, err = wanted.Sign(proof); err != nil {
		return answer, fmt.Errorf("sign: %w", err)
	}
	if request.Approval, err = current.Sign(proof); err != nil {
		return answer, fmt.Errorf("sign: %w", err)
	}
	if request.Link, err = wanted.Sign([]byte(nonce)); err != nil {
		return answer, fmt.Errorf("sign: %w", err)
	}
	err = c.callCloud(ctx, at, identity.VerbRenew, request, &answer)
	answer.Carried = answer.Carried && c.keys.carryLink(nonce, wanted)
	return checkAnswer(answer, err)
}

// pingCell proves that this link is in the node's own cell.
func (c *cloudCalls) pingCell(ctx context.Context) error {
	var answer struct{}
	return c.callCloud(ctx, ownCell, subject.VerbPing, struct{}{}, &answer)
}

// callCloud sends one request to a cloudcore.
func (c *cloudCalls) callCloud(ctx context.Context, at linkTarget, verb string, request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if at == ownCell {
		return call.Call(ctx, c.nc, c.node, verb, request, answer)
	}
	name := c.keys.current().Public
	nc, err := c.link.Conn("lobby", nats.CustomInboxPrefix(subject.InboxPrefix(name)))
	if err != nil {
		return err
	}
	defer nc.Close()
	return call.Call(ctx, nc, name, verb, request, answer)
}

// checkAnswer turns an invalid answer into an error.
func checkAnswer(e identity.Enrolment, err error) (identity.Enrolment, error) {
	if err == nil && e.Reason == "" && !e.Expires.After(e.Now) {
		err = errors.New("the answer says neither yes nor no")
	}
	return e, err
}
