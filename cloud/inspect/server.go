package inspect

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/internal/certs"
)

const (
	// headerTimeout closes connections of clients that send nothing.
	headerTimeout = 5 * time.Second
	// idleTimeout closes connections that a client left open.
	idleTimeout = 2 * time.Minute
	// answerTimeout bounds one answer: some 1 ms a node, sixteen at a time, and a hub without a leader does not answer.
	answerTimeout = 30 * time.Second
	// stopTimeout lets an answer end at the stop.
	stopTimeout = 2 * time.Second
)

// Config configures the listener. ClientCAFile may be empty: then only tokens are accepted.
type Config struct{ Address, CertFile, KeyFile, ClientCAFile string }

// Server serves a View on one address.
type Server struct {
	cfg    Config
	access AccessReviewer
	// others are handlers that are no questions, by their patterns.
	others map[string]http.Handler
	view   *View
	log    *zap.Logger
	ready  chan struct{}
}

// NewServer creates the server of a View. kube is asked for each request who the user is and what they may see.
func NewServer(cfg Config, kube kubernetes.Interface, view *View, log *zap.Logger) *Server {
	return &Server{cfg: cfg, access: AccessReviewer{kube}, others: map[string]http.Handler{}, view: view, log: log, ready: make(chan struct{})}
}

// Ready returns a channel that closes when the server listens.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Handle adds a handler of another package for a pattern of http.ServeMux; it decides itself who may. Call it before Start. Its answer has 35 s.
func (s *Server) Handle(pattern string, handler http.Handler) { s.others[pattern] = handler }

// Start serves until ctx ends and then returns nil.
func (s *Server) Start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for questions: %w", err)
	}
	faults, err := zap.NewStdLogAt(s.log, zap.DebugLevel) // failed handshakes: any client can cause them
	if err != nil {
		return fmt.Errorf("logger: %w", err)
	}
	config, err := certs.Listener{
		CertFile: s.cfg.CertFile, KeyFile: s.cfg.KeyFile, ClientCAFile: s.cfg.ClientCAFile, // without it tokens only
		Auth: tls.VerifyClientCertIfGiven, Protocols: []string{"h2", "http/1.1"},
	}.Config()
	if err != nil {
		return fmt.Errorf("listen for questions: %w", err)
	}
	server := &http.Server{
		Handler: s.Handler(), TLSConfig: config, ReadHeaderTimeout: headerTimeout, ErrorLog: faults,
		WriteTimeout: answerTimeout + headerTimeout, IdleTimeout: idleTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	close(s.ready)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("answer questions: %w", err)
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

// Handler returns the server's handler, without its listener.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+inspect.PathNodes, s.withAccess("list", "", func(ctx context.Context, _ string) (any, error) { return s.view.Nodes(ctx) }))
	mux.Handle("GET "+inspect.PathNodes+"/{node}", s.withAccess("get", "", func(ctx context.Context, node string) (any, error) { return s.view.Node(ctx, node) }))
	mux.Handle("GET "+inspect.PathNodes+"/{node}"+inspect.PathObjects,
		s.withAccess("get", inspect.SyncSubresource, func(ctx context.Context, node string) (any, error) { return s.view.Sync(ctx, node) }))
	for pattern, handler := range s.others {
		mux.Handle(pattern, handler)
	}
	return mux
}

// withAccess serves only users with the right.
func (s *Server) withAccess(verb, subresource string, find func(ctx context.Context, node string) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
		defer cancel()
		node := r.PathValue("node")
		found, user, err := s.findAuthorized(ctx, r, verb, node, subresource, find)
		if err != nil {
			code := statusCode(err)
			s.log.Info("question not answered", zap.String("user", user.Username), zap.String("node", node), zap.Int("code", code), zap.Error(err))
			http.Error(w, err.Error(), code)
			return
		}
		body, err := json.Marshal(found)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(body, '\n')) // the client is gone
	})
}

func (s *Server) findAuthorized(ctx context.Context, r *http.Request, verb, node, subresource string, find func(context.Context, string) (any, error)) (any, authenticationv1.UserInfo, error) {
	user, err := s.access.IdentifyUser(ctx, r)
	if err != nil {
		return nil, user, err
	}
	if err := s.access.AuthorizeUser(ctx, user, authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: node}); err != nil {
		return nil, user, err
	}
	found, err := find(ctx, node)
	return found, user, err
}

func statusCode(err error) int {
	switch {
	case errors.Is(err, errUnauthenticated):
		return http.StatusUnauthorized
	case errors.Is(err, errForbidden):
		return http.StatusForbidden
	case apierrors.IsNotFound(err):
		return http.StatusNotFound
	}
	return http.StatusServiceUnavailable
}
