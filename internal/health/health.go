// Package health serves a process's /metrics, /livez and /readyz (with ?verbose, each check by name) on one or more addresses.
package health

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/server/healthz"
)

const (
	// headerTimeout cuts clients that open a connection and say nothing.
	headerTimeout = 5 * time.Second
	// stopTimeout lets a scrape end.
	stopTimeout = 2 * time.Second
)

// Check is one condition for readiness; it returns why the process is not ready, and must not block.
type Check struct {
	Name  string
	Ready func() error
}

// Server answers on its addresses.
type Server struct {
	addresses []string
	gatherer  prometheus.Gatherer
	checks    []Check
	ready     chan struct{}
}

// New makes a server for addresses such as 127.0.0.1:10280 or unix:/run/frond/health.sock; an old socket is replaced,
// and only its owner may connect. The process is live as long as it answers.
func New(addresses []string, gatherer prometheus.Gatherer, checks ...Check) *Server {
	return &Server{addresses: addresses, gatherer: gatherer, checks: checks, ready: make(chan struct{})}
}

// Ready closes when the server listens.
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
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	var listeners []net.Listener
	for _, address := range s.addresses {
		listener, err := listen(ctx, address)
		if err != nil {
			_ = server.Close() // closes the listeners before this one
			return fmt.Errorf("listen for metrics and health: %w", err)
		}
		listeners = append(listeners, listener)
	}
	close(s.ready)
	return serve(ctx, server, listeners)
}

// listen opens one address; a unix socket is for its owner alone.
func listen(ctx context.Context, address string) (net.Listener, error) {
	path, unix := strings.CutPrefix(address, "unix:")
	if !unix {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return listener, os.Chmod(path, 0o600)
}

func serve(ctx context.Context, server *http.Server, listeners []net.Listener) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, listener := range listeners {
		g.Go(func() error {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve metrics and health: %w", err)
			}
			return nil
		})
	}
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
