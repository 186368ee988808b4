package kube

import (
	"net/http"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// retryInterval is the pause between tries of an apiserver that is unavailable: a few connections a second from
	// each cloudcore.
	retryInterval = 300 * time.Millisecond
	// retryLimit bounds the retries of one read; then the error is returned to the caller.
	retryLimit = 30 * time.Second
)

// withReadRetry makes reads wait for an apiserver that is unavailable, or has just started and has no storage or roles
// yet. Without it each informer backs off on its own, up to a minute, and nodes get changes that much later than the
// apiserver is back.
func withReadRetry(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &retryTransport{next: next, interval: retryInterval, limit: retryLimit}
	})
	return config
}

// retryTransport retries reads that reached no apiserver, or one that was not ready yet.
type retryTransport struct {
	next            http.RoundTripper
	interval, limit time.Duration
	// succeeded says that a read was answered once: then a missing right existed before, and will return.
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
			_ = response.Body.Close() // not read to its end: the connection may be closed
		}
	}
}

// isTransient reports whether a read should be retried, as the apiserver is unavailable or has just started.
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

// isUnreachable reports whether no server accepted a request, or none answered it.
func isUnreachable(err error) bool {
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}
