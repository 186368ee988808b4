package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/rules/delivery"
)

// observer writes down what it sees.
type observer struct{ seen []string }

func (o *observer) Began(m delivery.Message)      { o.seen = append(o.seen, "began "+m.ID) }
func (o *observer) Failed(_ time.Time, err error) { o.seen = append(o.seen, "failed: "+err.Error()) }
func (o *observer) Delivered()                    { o.seen = append(o.seen, "delivered") }

// answers is a target that gives these answers, one for each attempt, and then nil.
func answers(list ...error) (post delivery.Post, attempts *int) {
	attempts = new(int)
	return func(context.Context, delivery.Message) error {
		*attempts++
		if *attempts > len(list) {
			return nil
		}
		return list[*attempts-1]
	}, attempts
}

func times(n int, err error) []error {
	list := make([]error, n)
	for i := range list {
		list[i] = err
	}
	return list
}

func TestSender(t *testing.T) {
	away, later, refused := errors.New("connection refused"), &delivery.StatusError{Code: 503}, &delivery.StatusError{Code: 400, Text: "bad"}
	for name, tt := range map[string]struct {
		answers  []error
		attempts int
		err      error
		end      string
	}{
		"accepted":                          {nil, 1, nil, "delivered"},
		"accepted later":                    {[]error{away, later, refused}, 4, nil, "delivered"},
		"refused":                           {times(100, refused), delivery.MaxRefusals, wire.ErrPermanent, "failed: "},
		"refused, wrapped":                  {times(100, fmt.Errorf("post: %w", refused)), delivery.MaxRefusals, wire.ErrPermanent, "failed: "},
		"away is no refusal":                {times(500, away), 501, nil, "delivered"},
		"a busy target is no refusal":       {times(500, later), 501, nil, "delivered"},
		"a redirection is a refusal":        {times(100, &delivery.StatusError{Code: 302}), delivery.MaxRefusals, wire.ErrPermanent, "failed: "},
		"refusals add up between absences":  {append(append(times(9, refused), times(20, away)...), refused), 30, wire.ErrPermanent, "failed: "},
		"what cannot be sent is refused":    {times(100, fmt.Errorf("%w: bad header", delivery.ErrRefused)), delivery.MaxRefusals, wire.ErrPermanent, "failed: "},
		"an error of the server is counted": {times(100, &delivery.StatusError{Code: 500}), delivery.MaxRefusals, wire.ErrPermanent, "failed: "},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				post, attempts := answers(tt.answers...)
				var o observer
				err := delivery.New(post, &o).Send(t.Context(), delivery.Message{ID: "1"})
				if !errors.Is(err, tt.err) || *attempts != tt.attempts || o.seen[0] != "began 1" || !strings.HasPrefix(o.seen[len(o.seen)-1], tt.end) {
					t.Errorf("%d attempts, error %v, seen %q", *attempts, err, o.seen)
				}
			})
		})
	}
}

// A message that was interrupted goes on with its refusals; another one begins at none.
func TestSender_InterruptedMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		post, attempts := answers(times(100, &delivery.StatusError{Code: 400})...)
		s := delivery.New(post, &observer{})
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // for two attempts
		defer cancel()
		if err := s.Send(ctx, delivery.Message{ID: "1"}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, wire.ErrPermanent) {
			t.Fatalf("interrupted: %v", err)
		}
		begun := *attempts
		if begun == 0 || begun >= delivery.MaxRefusals {
			t.Fatalf("%d attempts in two seconds", begun)
		}
		for i, id := range []string{"1", "2"} {
			if err := s.Send(t.Context(), delivery.Message{ID: id}); !errors.Is(err, wire.ErrPermanent) || *attempts != (i+1)*delivery.MaxRefusals {
				t.Errorf("message %s: %d attempts in all, %v", id, *attempts, err)
			}
		}
	})
}

// A target that stays away holds a message for as long as the hub has it, not for ever.
func TestSender_MessageExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*delivery.MaxAge)
		defer cancel()
		begun := time.Now()
		post := func(context.Context, delivery.Message) error { return errors.New("connection refused") }
		err := delivery.New(post, &observer{}).Send(ctx, delivery.Message{ID: "1", Stored: begun.Add(-time.Hour)})
		took := time.Since(begun)
		if !errors.Is(err, wire.ErrPermanent) || took < delivery.MaxAge-time.Hour || took > delivery.MaxAge {
			t.Errorf("after %s: %v", took, err)
		}
	})
}

func TestDelay(t *testing.T) {
	for attempt, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute} {
		if least, most := delivery.Delay(attempt, 0), delivery.Delay(attempt, 1); least != want*3/4 || most != want {
			t.Errorf("attempt %d: %s to %s, want up to %s", attempt, least, most, want)
		}
	}
	if d := delivery.Delay(1<<20, 1); d != time.Minute {
		t.Errorf("after many attempts %s", d)
	}
}

func TestStatusError(t *testing.T) {
	if text := (&delivery.StatusError{Code: 404}).Error(); !strings.Contains(text, "404 Not Found") {
		t.Error(text)
	}
}
