package flow

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// NewRetryBackoff returns the backoff of attempts while the link is up. It starts short, because most faults are a leader election, and
// its maximum is near the length of an election; without a leader an attempt itself waits for some seconds.
func NewRetryBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 7, Cap: 4 * time.Second}
}

// StableSession is how long a session must have lasted for the next fault to count as a new one.
const StableSession = 30 * time.Second
