package cloud

import (
	"net/http"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// retryInterval is how often an apiserver that is away is tried again: a few connections a second of each cloudcore.
	retryInterval = 300 * time.Millisecond
	// retryLimit is how long; then the error goes the usual way and is told.
	retryLimit = 30 * time.Second
)

// withReadRetry makes reads wait for an apiserver that is away, or has just started and has no storage or roles yet. Without it each
// informer steps back by itself, up to a minute, and nodes get what changed that much later than the apiserver is back.
func withReadRetry(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &retryTransport{next: next, interval: retryInterval, limit: retryLimit}
	})
	return config
}

// retryTransport repeats reads that nobody took, or that an apiserver took too early.
type retryTransport struct {
	next            http.RoundTripper
	interval, limit time.Duration
	// succeeded says that a read was answered once: then a right that is missing was there, and comes back.
	succeeded atomic.Bool
}

func (p *retryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	begin := time.Now()
	ticker := time.NewTicker(p.interval)
	defer ticker.Stop()
	for {
		response, err := p.next.RoundTrip(r)
		if r.Method != http.MethodGet || time.Since(begin) >= p.limit || !p.isTransient(response, err) {
			return response, err
		}
		select {
		case <-r.Context().Done():
			return response, err
		case <-ticker.C:
		}
		if err == nil {
			_ = response.Body.Close() // not read to its end: the connection may go
		}
	}
}

// isTransient reports whether a read should be tried again, as the apiserver is away or has just started.
func (p *retryTransport) isTransient(response *http.Response, err error) bool {
	if err != nil {
		return isUnreachable(err)
	}
	switch code := response.StatusCode; {
	case code == http.StatusForbidden:
		return p.succeeded.Load()
	case code >= http.StatusInternalServerError:
		return true
	case code < http.StatusBadRequest:
		p.succeeded.Store(true)
	}
	return false
}

// isUnreachable reports whether nobody was there to take a request, or to answer it.
func isUnreachable(err error) bool {
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}
