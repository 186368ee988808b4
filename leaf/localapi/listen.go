package localapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/leaf/localapi/caller"
)

func (s *Server) listenUnix(ctx context.Context, g *errgroup.Group) error {
	if s.cfg.UnixSocket == "" {
		return nil
	}
	// The socket file of a killed process still occupies the name; no other process can own this file.
	if err := os.Remove(s.cfg.UnixSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := listenPrivate(ctx, s.cfg.UnixSocket)
	if err != nil {
		return fmt.Errorf("listen on socket: %w", err)
	}
	serveListener(ctx, g, s.newHTTPServer(caller.WithListener(ctx, caller.Socket)), listener)
	return nil
}

// listenPrivate opens the socket under a name in a folder that only this user can enter, restricts its mode, and then moves
// it to its place: no other user can connect in between.
func listenPrivate(ctx context.Context, path string) (net.Listener, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	temporary := filepath.Join(dir, "s")
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", temporary)
	if err != nil {
		return nil, err
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(temporary, 0o600), os.Rename(temporary, path)); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &unixListener{Listener: listener, path: path}, nil
}

// unixListener removes its file when it closes.
type unixListener struct {
	net.Listener
	path string
}

func (s *unixListener) Close() error {
	_ = os.Remove(s.path)
	return s.Listener.Close()
}

func (s *Server) listenTLS(ctx context.Context, g *errgroup.Group) error {
	if s.tls == nil {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.mu.Lock()
	s.tlsAddr = listener.Addr().String()
	s.mu.Unlock()
	server := s.newHTTPServer(caller.WithListener(ctx, caller.Anonymous))
	server.TLSConfig = s.tls
	g.Go(func() error {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", listener.Addr(), err)
		}
		return nil
	})
	closeOnDone(ctx, g, server)
	return nil
}

// Addr returns the address of the TLS listener; "" without one or before Ready. With port 0 in Config.Address it has the actual port.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tlsAddr
}

func (s *Server) newHTTPServer(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           s.routes,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          zap.NewStdLog(s.log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
}

func serveListener(ctx context.Context, g *errgroup.Group, server *http.Server, listener net.Listener) {
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", listener.Addr(), err)
		}
		return nil
	})
	closeOnDone(ctx, g, server)
}

// shutdownTimeout is for requests that still write to the store; watches end at once with their context.
const shutdownTimeout = 5 * time.Second

func closeOnDone(ctx context.Context, g *errgroup.Group, server *http.Server) {
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return server.Close()
		}
		return nil
	})
}

func tlsConfig(cfg Config) (*tls.Config, error) {
	return certs.Listener{
		CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, ClientCAFile: cfg.ClientCAFile, Auth: tls.VerifyClientCertIfGiven,
		Protocols: []string{"h2", "http/1.1"},
	}.Config()
}
