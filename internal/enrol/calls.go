package enrol

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/streams"
)

// askTimeout bounds one question: a cloudcore writes to the Kubernetes API before it answers.
const askTimeout = 10 * time.Second

// A RefusedError is the cloud's answer to a gateway that it does not take; the reason is for people.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// isFinal tells whether asking again would change nothing.
func isFinal(err error) bool {
	_, ca := errors.AsType[*CAError](err)
	_, clock := errors.AsType[*ClockError](err)
	return ca || clock
}

// place is where a link leads to.
type place bool

const (
	own   place = false // the cell: subjects and inbox have the node's name
	lobby place = true  // they have the key
)

// enrol asks to be recorded. A gateway that asked before and did not hear the answer is in its cell already, where its own key
// may be renewed by itself, which tells the same.
func (k *Keeper) enrol(ctx context.Context) (identity.Enrolment, error) {
	token, err := k.token()
	if err != nil {
		return identity.Enrolment{}, err
	}
	public := k.folder.current.public
	request := identity.EnrolRequest{Node: k.cfg.Node, Key: public, Token: token}
	if request.Signature, err = k.folder.current.Sign(identity.Proof(identity.VerbEnrol, k.cfg.Node, public)); err != nil {
		return identity.Enrolment{}, fmt.Errorf("sign: %w", err)
	}
	var answer identity.Enrolment
	if err = k.ask(ctx, lobby, identity.VerbEnrol, request, &answer); err == nil {
		return understood(answer, nil)
	}
	again, inCell := k.renewAs(ctx, own, public)
	if inCell != nil {
		return answer, errors.Join(err, inCell)
	}
	return again, nil
}

// renewAs asks for more time for a key, the current or the next one.
func (k *Keeper) renewAs(ctx context.Context, at place, public string) (identity.Enrolment, error) {
	k.mu.Lock()
	wanted, current, nonce := k.folder.current, k.folder.current, k.nonce
	if k.folder.next != nil && k.folder.next.public == public {
		wanted = k.folder.next
	}
	k.mu.Unlock()
	request := identity.RenewRequest{Node: k.cfg.Node, Key: wanted.public, Current: current.public, Nonce: nonce}
	proof := identity.Proof(identity.VerbRenew, k.cfg.Node, wanted.public)
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
	err = k.ask(ctx, at, identity.VerbRenew, request, &answer)
	answer.Carried = answer.Carried && k.carry(nonce, wanted)
	return understood(answer, err)
}

// carry notes that the link stands for another key now, if it still is the one with that nonce.
func (k *Keeper) carry(nonce string, to *key) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.nonce != nonce {
		return false
	}
	k.shown = to
	return true
}

// ping proves that this link is the node's own.
func (k *Keeper) ping(ctx context.Context) error {
	var answer struct{}
	return k.ask(ctx, own, streams.VerbPing, struct{}{}, &answer)
}

// ask is one question to a cloudcore.
func (k *Keeper) ask(ctx context.Context, at place, verb string, request, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if at == own {
		return streams.Call(ctx, k.nc, k.cfg.Node, verb, request, answer)
	}
	name := k.folder.current.public
	nc, err := k.link.Conn("lobby", nats.CustomInboxPrefix(streams.InboxPrefix(name)))
	if err != nil {
		return err
	}
	defer nc.Close()
	return streams.Call(ctx, nc, name, verb, request, answer)
}

// understood tells an answer from what is none.
func understood(e identity.Enrolment, err error) (identity.Enrolment, error) {
	if err == nil && e.Reason == "" && !e.Expires.After(e.Now) {
		err = errors.New("the answer says neither yes nor no")
	}
	return e, err
}
