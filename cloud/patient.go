package cloud

import (
	"net/http"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// patientTry is how often an apiserver that is away is tried again: a few connections a second of each cloudcore.
	patientTry = 300 * time.Millisecond
	// patientFor is how long; then the error goes the usual way and is told.
	patientFor = 30 * time.Second
)

// patiently makes reads wait for an apiserver that is away. Without it each informer steps back by itself, up to a minute, and
// nodes get what changed that much later than the apiserver is back.
func patiently(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &patient{next: next, try: patientTry, limit: patientFor}
	})
	return config
}

// patient repeats reads that nobody took.
type patient struct {
	next       http.RoundTripper
	try, limit time.Duration
}

func (p *patient) RoundTrip(r *http.Request) (*http.Response, error) {
	begin := time.Now()
	ticker := time.NewTicker(p.try)
	defer ticker.Stop()
	for {
		response, err := p.next.RoundTrip(r)
		if err == nil || r.Method != http.MethodGet || !away(err) || time.Since(begin) >= p.limit {
			return response, err
		}
		select {
		case <-r.Context().Done():
			return nil, err
		case <-ticker.C:
		}
	}
}

// away reports whether nobody was there to take a request, or to answer it.
func away(err error) bool {
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err)
}
