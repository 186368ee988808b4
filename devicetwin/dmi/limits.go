package dmi

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// maxConnections is how many connections of one pod are served at once. A mapper of KubeEdge's framework makes one for each report; the others
	// wait. One takes 20 KB.
	maxConnections = 256
	// maxWaiting is how many more may wait: one for each property of a large mapper, all at once when edgecore has restarted.
	maxWaiting = 4096
	// maxReports is how many reports of one pod are handled at once, whatever the number of connections.
	maxReports = 256
	// maxWait is how long a connection waits to be served: longer than a mapper waits for an answer.
	maxWait = 2 * time.Second
	// maxReport bounds a message of a mapper, as devicetwin bounds all values of a device.
	maxReport = 256 << 10
)

// limiter bounds what one pod takes of edgecore. What is above a limit waits: so a mapper that reports too fast is slowed down, and no other one.
type limiter struct {
	done <-chan struct{}

	mu    sync.Mutex // guards peers
	peers map[string]*peerUse
}

// peerUse is the use of one identity.
type peerUse struct {
	// connections and reports have a place for each that is served.
	connections, reports chan struct{}
	// users are those that wait or are served; guarded by limiter.mu.
	users int
}

func newLimiter(done <-chan struct{}) *limiter {
	return &limiter{done: done, peers: map[string]*peerUse{}}
}

// errTooMany reports a pod that opens connections faster than they are served.
var errTooMany = errors.New("too many connections of this mapper")

// acquire adds a user of an identity, or returns nil if there are too many.
func (l *limiter) acquire(identity string, most int) *peerUse {
	l.mu.Lock()
	defer l.mu.Unlock()
	use := l.peers[identity]
	if use == nil {
		use = &peerUse{connections: make(chan struct{}, maxConnections), reports: make(chan struct{}, maxReports)}
		l.peers[identity] = use
	}
	if use.users >= most {
		return nil
	}
	use.users++
	return use
}

func (l *limiter) release(identity string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if use := l.peers[identity]; use != nil {
		if use.users--; use.users == 0 {
			delete(l.peers, identity)
		}
	}
}

// admit waits until a connection of an identity may be served.
func (l *limiter) admit(identity string) (release func(), err error) {
	use := l.acquire(identity, maxConnections+maxWaiting)
	if use == nil {
		return nil, errTooMany
	}
	timer := time.NewTimer(maxWait)
	defer timer.Stop()
	select {
	case use.connections <- struct{}{}:
		return func() {
			<-use.connections
			l.release(identity)
		}, nil
	case <-timer.C:
	case <-l.done:
	}
	l.release(identity)
	return nil, errTooMany
}

// report waits until a report of an identity may be handled.
func (l *limiter) report(ctx context.Context, identity string) (release func(), err error) {
	use := l.acquire(identity, 1<<30) // each has a connection that counts
	select {
	case use.reports <- struct{}{}:
		return func() {
			<-use.reports
			l.release(identity)
		}, nil
	case <-ctx.Done():
		l.release(identity)
		return nil, status.Error(codes.ResourceExhausted, "the reports of this mapper come faster than they can be stored")
	}
}
