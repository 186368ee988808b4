package cloud

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// absent is an apiserver to which the first connections are refused.
type absent struct{ refuse, tried int }

func (a *absent) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.tried++; a.tried <= a.refuse {
		return nil, fmt.Errorf("dial tcp: connect: %w", syscall.ECONNREFUSED)
	}
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
}

// TestReadsWaitForAnApiserverThatIsAway: a read is repeated until it is taken, its limit is over or nobody wants it any more; a
// write is never repeated.
func TestReadsWaitForAnApiserverThatIsAway(t *testing.T) {
	given, give := context.WithCancel(t.Context())
	give()
	for name, tt := range map[string]struct {
		ctx    context.Context //nolint:containedctx // of the request
		method string
		limit  time.Duration
		refuse int
		want   bool // the answer comes
		tries  int  // at most; at least 1, or all it takes
	}{
		"there":            {t.Context(), http.MethodGet, time.Minute, 0, true, 1},
		"away":             {t.Context(), http.MethodGet, time.Minute, 5, true, 6},
		"away too long":    {t.Context(), http.MethodGet, 0, 5, false, 1},
		"given up":         {given, http.MethodGet, time.Minute, 100, false, 99},
		"away for a write": {t.Context(), http.MethodPatch, time.Minute, 5, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			server := &absent{refuse: tt.refuse}
			p := &patient{next: server, try: time.Millisecond, limit: tt.limit}
			r, err := http.NewRequestWithContext(tt.ctx, tt.method, "http://apiserver", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := p.RoundTrip(r)
			if (err == nil) != tt.want || err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("error %v, want an answer: %v", err, tt.want)
			}
			if err == nil {
				if err := response.Body.Close(); err != nil {
					t.Error(err)
				}
			}
			if server.tried > tt.tries || tt.want && server.tried != tt.tries {
				t.Errorf("%d tries, want %d", server.tried, tt.tries)
			}
		})
	}
}
