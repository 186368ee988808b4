package enroll

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/identitycall"
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

// requestEnrolment asks to be recorded.
func (c *cloudCalls) requestEnrolment(ctx context.Context) (identity.Enrolment, error) {
	token, err := c.keys.readToken()
	if err != nil {
		return identity.Enrolment{}, err
	}
	key := c.keys.current()
	return identitycall.Enrol(ctx, c.callerAt(lobbyCell), c.node, token, signing(key), func(ctx context.Context) (identity.Enrolment, error) {
		return c.requestRenewal(ctx, ownCell, key.Public)
	})
}

// requestRenewal asks to extend the validity of a key, the current or the next one.
func (c *cloudCalls) requestRenewal(ctx context.Context, at linkTarget, public string) (identity.Enrolment, error) {
	wanted, current, nonce := c.keys.renewal(public)
	answer, err := identitycall.Renew(ctx, c.callerAt(at), c.node, signing(wanted), signing(current), nonce)
	answer.Carried = answer.Carried && c.keys.carryLink(nonce, wanted)
	return answer, err
}

// signing returns a key of this gateway as that of a request.
func signing(k *identitydir.Key) identitycall.Key {
	return identitycall.Key{Public: k.Public, Sign: k.Sign}
}

func (c *cloudCalls) callerAt(at linkTarget) identitycall.Caller {
	return func(ctx context.Context, verb string, request, answer any) error {
		return c.callCloud(ctx, at, verb, request, answer)
	}
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
