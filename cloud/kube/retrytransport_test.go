package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// refusingServer is an apiserver that refuses the first connections.
type refusingServer struct{ refuse, tried int }

func (a *refusingServer) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.tried++; a.tried <= a.refuse {
		return nil, fmt.Errorf("dial tcp: connect: %w", syscall.ECONNREFUSED)
	}
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
}

// TestRetryTransport_WaitsForUnreachableAPIServer: a read is retried until it is accepted, its limit is over or its
// context ends; a write is never retried.
func TestRetryTransport_WaitsForUnreachableAPIServer(t *testing.T) {
	given, give := context.WithCancel(t.Context())
	give()
	for name, tt := range map[string]struct {
		ctx    context.Context //nolint:containedctx // of the request
		method string
		limit  time.Duration
		refuse int
		want   bool // an answer arrives
		tries  int  // at most; at least 1, or all it takes
	}{
		"there":            {t.Context(), http.MethodGet, time.Minute, 0, true, 1},
		"away":             {t.Context(), http.MethodGet, time.Minute, 5, true, 6},
		"away too long":    {t.Context(), http.MethodGet, 0, 5, false, 1},
		"given up":         {given, http.MethodGet, time.Minute, 100, false, 99},
		"away for a write": {t.Context(), http.MethodPatch, time.Minute, 5, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			server := &refusingServer{refuse: tt.refuse}
			p := &retryTransport{next: server, interval: time.Millisecond, limit: tt.limit}
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

// scriptedServer is an apiserver with a list of answers; the last one is repeated.
type scriptedServer struct {
	codes  []int
	asked  int
	bodies []*trackedBody
}

// trackedBody records whether it was closed.
type trackedBody struct {
	io.Reader
	closed bool
}

func (b *trackedBody) Close() error { b.closed = true; return nil }

func (a *scriptedServer) RoundTrip(r *http.Request) (*http.Response, error) {
	code := a.codes[min(a.asked, len(a.codes)-1)]
	a.asked++
	b := &trackedBody{Reader: strings.NewReader("said")}
	a.bodies = append(a.bodies, b)
	return &http.Response{StatusCode: code, Body: b, Request: r}, nil
}

// TestRetryTransport_WaitsForStartingAPIServer: an apiserver that has just started may have no storage yet, and not
// know the roles; a right that is missing from the beginning is reported at once.
func TestRetryTransport_WaitsForStartingAPIServer(t *testing.T) {
	const ok, forbidden, internal, unavailable = http.StatusOK, http.StatusForbidden, http.StatusInternalServerError, http.StatusServiceUnavailable
	for name, tt := range map[string]struct {
		method string
		limit  time.Duration
		codes  []int // the first is the answer to the read before
		want   int
		asked  int
	}{
		"roles not read":           {http.MethodGet, time.Minute, []int{ok, forbidden, forbidden, ok}, ok, 4},
		"storage away":             {http.MethodGet, time.Minute, []int{ok, internal, unavailable, ok}, ok, 4},
		"never had the right":      {http.MethodGet, time.Minute, []int{forbidden, forbidden, ok}, forbidden, 2},
		"storage away at a start":  {http.MethodGet, time.Minute, []int{unavailable, ok, ok}, ok, 3},
		"right taken away":         {http.MethodGet, 0, []int{ok, forbidden}, forbidden, 2},
		"not found":                {http.MethodGet, time.Minute, []int{ok, http.StatusNotFound}, http.StatusNotFound, 2},
		"history gone":             {http.MethodGet, time.Minute, []int{ok, http.StatusGone}, http.StatusGone, 2},
		"a write is not repeated":  {http.MethodPatch, time.Minute, []int{ok, unavailable, ok}, unavailable, 2},
		"its own pause is for who": {http.MethodGet, time.Minute, []int{ok, http.StatusTooManyRequests}, http.StatusTooManyRequests, 2},
	} {
		t.Run(name, func(t *testing.T) {
			server := &scriptedServer{codes: tt.codes}
			p := &retryTransport{next: server, interval: time.Millisecond, limit: tt.limit}
			var got *http.Response
			for _, method := range []string{http.MethodGet, tt.method} {
				r, err := http.NewRequestWithContext(t.Context(), method, "http://apiserver", nil)
				if err != nil {
					t.Fatal(err)
				}
				if got, err = p.RoundTrip(r); err != nil {
					t.Fatal(err)
				}
				defer func() { _ = got.Body.Close() }()
			}
			if got.StatusCode != tt.want || server.asked != tt.asked {
				t.Errorf("%d after %d questions, want %d after %d", got.StatusCode, server.asked, tt.want, tt.asked)
			}
			if said, err := io.ReadAll(got.Body); err != nil || string(said) != "said" {
				t.Errorf("the answer is read already: %q, %v", said, err)
			}
			closed := 0
			for _, b := range server.bodies {
				if b.closed {
					closed++
				}
			}
			if closed != server.asked-2 {
				t.Errorf("%d of %d answers are closed, want all but the two that were given on", closed, server.asked)
			}
		})
	}
}
