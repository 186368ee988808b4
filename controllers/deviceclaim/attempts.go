package deviceclaim

import (
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// retryFirst and retryMost are how long a write waits that the apiserver has refused, at first and at most.
	retryFirst, retryMost = time.Second, time.Minute
	// maxForbidden is after how many writes of one scan, all of them forbidden, the right is taken as missing. Fewer may be one namespace, or one webhook.
	maxForbidden = 20
)

// errNoRight says that all writes are forbidden.
var errNoRight = errors.New("all writes are forbidden")

// attempts are the writes of a Reconciler. One that fails is put off for longer each time, and puts off no other. It is not for concurrent use.
type attempts struct {
	backoff *flowcontrol.Backoff
	// Of the present scan:
	tried, forbidden int
	failed           error
}

func newAttempts(first, most time.Duration) *attempts {
	return &attempts{backoff: flowcontrol.NewBackOff(first, most)}
}

// begin begins a scan.
func (a *attempts) begin() {
	a.backoff.GC()
	a.tried, a.forbidden, a.failed = 0, 0, nil
}

// try makes a write, unless one of the same key has failed lately. It returns an error only if no other need be tried in this scan.
func (a *attempts) try(key string, write func() error) error {
	if a.backoff.IsInBackOffSinceUpdate(key, time.Now()) {
		return nil
	}
	err := write()
	a.tried++
	if err == nil {
		return nil
	}
	a.backoff.Next(key, time.Now())
	a.failed = err
	if apierrors.IsForbidden(err) {
		a.forbidden++
	}
	if a.forbidden == a.tried && a.tried >= maxForbidden {
		return errors.Join(errNoRight, err)
	}
	return nil
}
