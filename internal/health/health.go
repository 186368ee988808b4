// Package health serves a process's /metrics, /livez and /readyz (with ?verbose, each check by name) on one address.
package health

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/server/healthz"
)

const (
	// headerTimeout closes connections of clients that send no request.
	headerTimeout = 5 * time.Second
	// answerTimeout bounds one answer; a scrape times out after 10 s by default. idleTimeout closes idle connections
	// of clients; Prometheus scrapes once a minute.
	answerTimeout, idleTimeout = time.Minute, 2 * time.Minute
	// stopTimeout lets a scrape end.
	stopTimeout = 2 * time.Second
)

// Check is one readiness condition; it returns why the process is not ready, and must not block.
type Check struct {
	Name  string
	Ready func() error
}

// Server serves the health endpoints on one address.
type Server struct {
	address  string
	gatherer prometheus.Gatherer
	checks   []Check
	ready    chan struct{}
}

// New makes a server for an address such as 127.0.0.1:10280. The process is live as long as the server answers.
func New(address string, gatherer prometheus.Gatherer, checks ...Check) *Server {
	return &Server{address: address, gatherer: gatherer, checks: checks, ready: make(chan struct{})}
}

// Ready returns a channel that is closed when the server listens.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Start serves until ctx ends and then returns nil.
func (s *Server) Start(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(s.gatherer, promhttp.HandlerOpts{}))
	healthz.InstallLivezHandler(mux, healthz.PingHealthz)
	ready := []healthz.HealthChecker{healthz.PingHealthz}
	for _, check := range s.checks {
		ready = append(ready, healthz.NamedCheck(check.Name, func(*http.Request) error { return check.Ready() }))
	}
	healthz.InstallReadyzHandler(mux, ready...)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.address)
	if err != nil {
		return fmt.Errorf("listen for metrics and health: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout}
	close(s.ready)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics and health: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stop) != nil {
			_ = server.Close() // a client that does not end; nothing is lost
		}
		return nil
	})
	return g.Wait()
}
