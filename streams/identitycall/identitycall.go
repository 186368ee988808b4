// Package identitycall makes a gateway's requests about its key: to enrol it and to renew it. edgecore and the simulated gateways of
// frond loadtest share it, so that both recover from a lost answer in the same way.
//
// It keeps no key and no record, and it sends nothing by itself: a Caller does, over a link in the lobby or in the node's own cell.
package identitycall

import (
	"context"
	"errors"
	"fmt"

	"github.com/frond-edge/frond/api/identity"
)

// Key is a key that can sign.
type Key struct {
	// Public is its public half.
	Public string
	// Sign signs with its private half.
	Sign func(text []byte) ([]byte, error)
}

// Caller sends one request to any cloudcore and decodes the reply into answer.
type Caller func(ctx context.Context, verb string, request, answer any) error

// Enrol asks in the lobby to be recorded. A gateway whose earlier answer was lost is recorded, so its link is in its own cell, where the lobby's
// subjects do not exist. There renew asks for renewal of the key that it has, which returns the same answer.
func Enrol(ctx context.Context, lobby Caller, node, token string, key Key, renew func(context.Context) (identity.Enrolment, error)) (identity.Enrolment, error) {
	request := identity.EnrolRequest{Node: node, Key: key.Public, Token: token}
	var err error
	if request.Signature, err = key.Sign(identity.Proof(identity.VerbEnrol, node, key.Public)); err != nil {
		return identity.Enrolment{}, fmt.Errorf("sign: %w", err)
	}
	answer, err := send(ctx, lobby, identity.VerbEnrol, request)
	if err == nil {
		return answer, nil
	}
	again, inCell := renew(ctx)
	if inCell != nil {
		return answer, errors.Join(err, inCell)
	}
	return again, nil
}

// Renew asks to extend the validity of a key: the current one, or another one that takes its place. nonce is the hub's of the link that the
// request is sent over.
func Renew(ctx context.Context, caller Caller, node string, wanted, current Key, nonce string) (identity.Enrolment, error) {
	request := identity.RenewRequest{Node: node, Key: wanted.Public, Current: current.Public, Nonce: nonce}
	proof := identity.Proof(identity.VerbRenew, node, wanted.Public)
	for _, signature := range []struct {
		into *[]byte
		by   Key
		text []byte
	}{{&request.Signature, wanted, proof}, {&request.Approval, current, proof}, {&request.Link, wanted, []byte(nonce)}} {
		var err error
		if *signature.into, err = signature.by.Sign(signature.text); err != nil {
			return identity.Enrolment{}, fmt.Errorf("sign: %w", err)
		}
	}
	return send(ctx, caller, identity.VerbRenew, request)
}

// send sends a request, and turns an invalid answer into an error. A refusal is an answer with a reason.
func send(ctx context.Context, caller Caller, verb string, request any) (answer identity.Enrolment, err error) {
	if err = caller(ctx, verb, request, &answer); err == nil && answer.Reason == "" && !answer.Expires.After(answer.Now) {
		err = errors.New("the answer says neither yes nor no")
	}
	return answer, err
}
