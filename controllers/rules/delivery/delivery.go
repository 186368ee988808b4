// Package delivery sends one message of a rule to its target until the target accepts it, and decides when to give it up.
//
// A target that is away (no connection, no answer, or an answer that says "later") is tried until the message is MaxAge old, then it is given up, too. A target that refuses a
// message, or one that no request can be made of, is tried MaxRefusals times, then the message is given up, so that it does not hold all later ones for ever. Attempts are counted in memory: after
// a restart of cloudcore a refused message is tried as often again.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// firstDelay and maxDelay bound the time between two attempts of a message, which doubles.
	firstDelay = time.Second
	maxDelay   = time.Minute
	// MaxRefusals is after how many refusals a message is given up; it has been tried for about four minutes then.
	MaxRefusals = 10
	// MaxAge is how old a message can be: the hub drops it from the stream then.
	MaxAge = 24 * time.Hour
)

// ErrRefused is wrapped by errors of Post that no later attempt can cure: they count as refusals.
var ErrRefused = errors.New("the request cannot be made")

// Message is what is sent.
type Message struct {
	// ID is the same for each attempt of a message, so that a receiver can recognize a repeated one.
	ID string
	// Node and Topic are where it was published; GatewayTime is when, by the gateway's clock, in RFC 3339.
	Node, Topic, GatewayTime string
	Payload                  []byte
	// Stored is when the hub stored it.
	Stored time.Time
}

// StatusError is an answer with a status other than 2xx.
type StatusError struct {
	Code int
	// Text is the beginning of the answer's body.
	Text string
}

// Error implements error.
func (e *StatusError) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("the target answered %d %s", e.Code, http.StatusText(e.Code))
	}
	return fmt.Sprintf("the target answered %d %s: %s", e.Code, http.StatusText(e.Code), e.Text)
}

// refused reports whether the target has seen the message and does not want it, rather than not being able to take it now.
func (e *StatusError) refused() bool {
	switch e.Code {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return false
	}
	return true
}

// Post sends a message once. It returns nil if the target has accepted it, a *StatusError if it answered something else, an error that wraps ErrRefused if it
// can never be sent. Any other error is a target that is away.
type Post func(ctx context.Context, m Message) error

// Observer sees the attempts at one rule's messages. Its methods must not block.
type Observer interface {
	// Began is called with each message before it is sent.
	Began(m Message)
	// Failed is called after each attempt that failed.
	Failed(at time.Time, err error)
	// Delivered is called when the target has accepted a message. One that is given up is counted where it is stored as a dead letter.
	Delivered()
}

// Sender sends the messages of one rule. Send must not be called concurrently.
type Sender struct {
	post    Post
	observe Observer
	now     func() time.Time
	// last is the message that was sent last, refusals how often its target has refused it: an interrupted message comes again.
	last     string
	refusals int
}

// New returns the Sender of a rule.
func New(post Post, observe Observer) *Sender {
	return &Sender{post: post, observe: observe, now: time.Now}
}

// Send returns nil when the target has accepted the message, an error that wraps wire.ErrPermanent when it is given up, and the error of ctx when that ends.
func (s *Sender) Send(ctx context.Context, m Message) error {
	s.observe.Began(m)
	for attempt := 0; ; attempt++ {
		err := s.post(ctx, m)
		switch {
		case err == nil:
			s.observe.Delivered()
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("message %s: %w", m.ID, context.Cause(ctx))
		}
		s.observe.Failed(s.now(), err)
		refusals := s.countRefusal(m.ID, err)
		switch {
		case refusals >= MaxRefusals:
			return fmt.Errorf("%w: refused %d times: %w", wire.ErrPermanent, MaxRefusals, err)
		case !m.Stored.IsZero() && s.now().Sub(m.Stored) >= MaxAge:
			return fmt.Errorf("%w: not delivered within %s: %w", wire.ErrPermanent, MaxAge, err)
		}
		timer := time.NewTimer(Delay(attempt, rand.Float64()))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("message %s: %w", m.ID, context.Cause(ctx))
		}
	}
}

// countRefusal returns how often the target has refused a message.
func (s *Sender) countRefusal(id string, err error) int {
	if s.last != id {
		s.last, s.refusals = id, 0
	}
	if status, ok := errors.AsType[*StatusError](err); ok && status.refused() || errors.Is(err, ErrRefused) {
		s.refusals++
	}
	return s.refusals
}

// Delay is the time after an attempt, the first of which is 0. spread, from 0 to 1, keeps rules that failed together from trying together.
func Delay(attempt int, spread float64) time.Duration {
	delay := maxDelay
	if attempt < 6 { // 2^6 s is above maxDelay
		delay = firstDelay << attempt
	}
	return delay*3/4 + time.Duration(spread*float64(delay)/4)
}
