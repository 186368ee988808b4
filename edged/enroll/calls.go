package enroll

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/edged/identitydir"
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

// requestEnrolment asks to be recorded. A gateway whose earlier answer was lost is in its own cell already. Its key may be
// renewed there, which returns the same answer.
func (k *Renewer) requestEnrolment(ctx context.Context) (identity.Enrolment, error) {
	token, err := k.readToken()
	if err != nil {
		return identity.Enrolment{}, err
	}
	public := k.folder.Current.Public
	request := identity.EnrolRequest{Node: k.cfg.Node, Key: public, Token: token}
	if request.Signature, err = k.folder.Current.Sign(identity.Proof(identity.VerbEnrol, k.cfg.Node, public)); err != nil {
		return identity.Enrolment{}, fmt.Errorf("sign: %w", err)
	}
	var answer identity.Enrolment
	if err = k.callCloud(ctx, lobbyCell, identity.VerbEnrol, request, &answer); err == nil {
		return checkAnswer(answer, nil)
	}
	again, inCell := k.requestRenewal(ctx, ownCell, public)
	if inCell != nil {
		return answer, errors.Join(err, inCell)
	}
	return again, nil
}

// requestRenewal asks to extend the validity of a key, the current or the next one.
func (k *Renewer) requestRenewal(ctx context.Context, at linkTarget, public string) (identity.Enrolment, error) {
	k.mu.Lock()
	wanted, current, nonce := k.folder.Of(public), k.folder.Current, k.nonce
	k.mu.Unlock()
	request := identity.RenewRequest{Node: k.cfg.Node, Key: wanted.Public, Current: current.Public, Nonce: nonce}
	proof := identity.Proof(identity.VerbRenew, k.cfg.Node, wanted.Public)
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
	err = k.callCloud(ctx, at, identity.VerbRenew, request, &answer)
	answer.Carried = answer.Carried && k.carryLink(nonce, wanted)
	return checkAnswer(answer, err)
}

// carryLink records that the link now belongs to another key, if it still is the one with that nonce.
func (k *Renewer) carryLink(nonce string, to *identitydir.Key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.nonce != nonce {
		return false
	}
	k.linkKey = to
	return true
}

// pingCell proves that this link is in the node's own cell.
func (k *Renewer) pingCell(ctx context.Context) error {
	var answer struct{}
	return k.callCloud(ctx, ownCell, subject.VerbPing, struct{}{}, &answer)
}

// callCloud sends one request to a cloudcore.
func (k *Renewer) callCloud(ctx context.Context, at linkTarget, verb string, request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if at == ownCell {
		return call.Call(ctx, k.nc, k.cfg.Node, verb, request, answer)
	}
	name := k.folder.Current.Public
	nc, err := k.link.Conn("lobby", nats.CustomInboxPrefix(subject.InboxPrefix(name)))
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
