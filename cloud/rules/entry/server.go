package entry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/rulecall"
	"github.com/frond-edge/frond/internal/certs"
)

const (
	// headerTimeout closes connections of clients that send nothing.
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	stopTimeout   = 2 * time.Second
)

// Config configures the listener.
type Config struct {
	Address string
	// CertFile, KeyFile and ClientCAFile are for TLS; without CertFile the listener is plain HTTP.
	CertFile, KeyFile, ClientCAFile string
}

// Server serves a Handler at an address.
type Server struct {
	cfg     Config
	handler http.Handler
	log     *zap.Logger
}

// NewServer returns the server.
func NewServer(cfg Config, handler http.Handler, log *zap.Logger) *Server {
	return &Server{cfg: cfg, handler: handler, log: log}
}

// Start serves until ctx ends and then returns nil.
func (s *Server) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for callers of rules: %w", err)
	}
	return s.serve(ctx, listener)
}

func (s *Server) serve(ctx context.Context, listener net.Listener) error {
	faults, err := zap.NewStdLogAt(s.log, zap.DebugLevel) // failed handshakes: any client can cause them
	if err != nil {
		return fmt.Errorf("logger: %w", err)
	}
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: 2 * rulecall.Timeout, WriteTimeout: 2 * rulecall.Timeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: faults, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	if s.cfg.CertFile != "" {
		config, err := certs.Listener{
			CertFile: s.cfg.CertFile, KeyFile: s.cfg.KeyFile, ClientCAFile: s.cfg.ClientCAFile, // without it tokens only
			Auth: tls.VerifyClientCertIfGiven, Protocols: []string{"h2", "http/1.1"},
		}.Config()
		if err != nil {
			_ = listener.Close() // the certificate is the error
			return fmt.Errorf("listen for callers of rules: %w", err)
		}
		listener = tls.NewListener(listener, config)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve callers of rules: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stop) != nil {
			_ = server.Close() // the caller is told that the outcome is unknown: the connection breaks
		}
		return nil
	})
	return g.Wait()
}
