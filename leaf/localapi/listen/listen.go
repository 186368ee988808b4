// Package listen opens the listeners of the local API: in memory for this process, a unix socket, TLS on a loopback address, and TLS
// on the addresses at which the pods of the gateway find the Kubernetes API.
//
// It marks each request with the kind of its listener (package caller), and authenticates nobody. It owns the connections: when the
// context of a Serve or Run ends, watches end at once, and other requests get a few seconds.
package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/leaf/localapi/caller"
)

const (
	// pipeBytes is the buffer of an in-memory connection in each direction; there is one connection per client pool.
	pipeBytes = 64 << 10
	// maxStreams limits the requests and watches of one HTTP/2 connection. A kubelet opens one watch for each ConfigMap and
	// Secret that its pods use.
	maxStreams = 8192
	// maxHeaderBytes limits a request's headers; a kubelet's are below 1 KB.
	maxHeaderBytes = 16 << 10
	// headerTimeout is how long a client of a real listener may take to send its headers.
	headerTimeout = 10 * time.Second
	// idleTimeout ends connections that a local program left open.
	idleTimeout = 2 * time.Minute
	// shutdownTimeout is for requests that still write to the store; watches end at once with their context.
	shutdownTimeout = 5 * time.Second
)

// Config names the listeners beside the in-memory one.
type Config struct {
	// UnixSocket is the path of a socket for programs of the same user; "" for none. Its folder must exist.
	UnixSocket string
	// Address is a loopback address with port for TLS with client certificates or tokens; "" for none.
	Address string
	// CertFile, KeyFile and ClientCAFile are PEM files for Address, read again for each connection.
	CertFile, KeyFile, ClientCAFile string
}

// Listeners serves a handler in memory, on a unix socket, and on a loopback address with TLS.
type Listeners struct {
	cfg       Config
	handler   http.Handler
	log       *zap.Logger
	tls       *tls.Config // nil without Address
	pipe      *bufconn.Listener
	transport *http.Transport

	mu      sync.Mutex // guards tlsAddr
	tlsAddr string
}

// New reads the certificates, and opens only the in-memory listener: a client from ClientConfig may connect, and waits for Serve.
func New(cfg Config, handler http.Handler, log *zap.Logger) (*Listeners, error) {
	l := &Listeners{cfg: cfg, handler: handler, log: log, pipe: bufconn.Listen(pipeBytes)}
	// All watches of a client share one connection, so that a watch costs a few goroutines' stacks and no buffers of its own.
	l.transport = &http.Transport{
		DialContext:        l.dial,
		DisableCompression: true, // both ends are in one process
		Protocols:          new(http.Protocols),
	}
	l.transport.Protocols.SetUnencryptedHTTP2(true)
	if cfg.Address == "" {
		return l, nil
	}
	var err error
	l.tls, err = certs.Listener{
		CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, ClientCAFile: cfg.ClientCAFile, Auth: tls.VerifyClientCertIfGiven,
		Protocols: []string{"h2", "http/1.1"},
	}.Config()
	return l, err
}

// ClientConfig returns the configuration of an in-memory client. All clients share its transport, an *http.Transport that speaks
// HTTP/2 without TLS. Without the transport, Dial alone works too, at the cost of one connection for each watch.
func (l *Listeners) ClientConfig() *rest.Config {
	return &rest.Config{Host: "http://localapi.frond", Transport: l.transport, Dial: l.dial, QPS: -1}
}

func (l *Listeners) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return l.pipe.DialContext(ctx)
}

// CloseIdleConnections closes the connections of in-memory clients that are not in use.
func (l *Listeners) CloseIdleConnections() { l.transport.CloseIdleConnections() }

// Serve opens all listeners, and serves them in goroutines of g until ctx ends.
func (l *Listeners) Serve(ctx context.Context, g *errgroup.Group) error {
	memory := newHTTPServer(caller.WithListener(ctx, caller.Kubelet), l.handler, l.log)
	memory.Protocols = new(http.Protocols)
	memory.Protocols.SetUnencryptedHTTP2(true)
	memory.Protocols.SetHTTP1(true)
	// Idle connections of this process's clients end at once; HTTP/2's GOAWAY would take a second.
	memory.RegisterOnShutdown(l.transport.CloseIdleConnections)
	serveListener(ctx, g, memory, l.pipe)
	err := l.listenUnix(ctx, g)
	if err == nil {
		err = l.listenTLS(ctx, g)
	}
	if err != nil {
		_ = l.pipe.Close()
	}
	return err
}

func (l *Listeners) listenUnix(ctx context.Context, g *errgroup.Group) error {
	if l.cfg.UnixSocket == "" {
		return nil
	}
	// The socket file of a killed process still occupies the name; no other process can own this file.
	if err := os.Remove(l.cfg.UnixSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := listenPrivate(ctx, l.cfg.UnixSocket)
	if err != nil {
		return fmt.Errorf("listen on socket: %w", err)
	}
	serveListener(ctx, g, newHTTPServer(caller.WithListener(ctx, caller.Socket), l.handler, l.log), listener)
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

func (l *Listeners) listenTLS(ctx context.Context, g *errgroup.Group) error {
	if l.tls == nil {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	l.mu.Lock()
	l.tlsAddr = listener.Addr().String()
	l.mu.Unlock()
	server := newHTTPServer(caller.WithListener(ctx, caller.Anonymous), l.handler, l.log)
	server.TLSConfig = l.tls
	g.Go(func() error {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", listener.Addr(), err)
		}
		return nil
	})
	closeOnDone(ctx, g, server)
	return nil
}

// Addr returns the address of the TLS listener; "" without one or before Serve. With port 0 in Config.Address it has the actual port.
func (l *Listeners) Addr() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tlsAddr
}

func newHTTPServer(ctx context.Context, handler http.Handler, log *zap.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          zap.NewStdLog(log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))),
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
