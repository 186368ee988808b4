// Package servicebus passes calls of KubeEdge's Rules on to services of this gateway. The calls come from the cloud through tunnels; a service is an HTTP server
// at a port of 127.0.0.1 that the configuration names. Each call is sent once, and its answer goes back as it is.
package servicebus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/rulecall"
)

const (
	headerTimeout = 10 * time.Second
	dialTimeout   = 5 * time.Second
	stopTimeout   = 2 * time.Second
	maxHeader     = 64 << 10
)

// Server passes calls on.
type Server struct {
	ports []uint16
	log   *zap.Logger
	proxy *httputil.ReverseProxy
}

// notSentError is an error before a service got the call.
type notSentError struct{ err error }

func (e notSentError) Error() string { return e.err.Error() }
func (e notSentError) Unwrap() error { return e.err }

// New returns a Server for services at these ports.
func New(ports []uint16, log *zap.Logger) *Server {
	s := &Server{ports: ports, log: log}
	dialer := &net.Dialer{Timeout: dialTimeout}
	s.proxy = &httputil.ReverseProxy{
		// ServeHTTP has prepared the request. ReverseProxy removes what it cannot parse of a query.
		Rewrite:  func(p *httputil.ProxyRequest) { p.Out.URL.RawQuery = p.In.URL.RawQuery },
		ErrorLog: zap.NewStdLog(zap.NewNop()),
		// A connection of its own for each call: on a used one a call is sent again when it breaks.
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: rulecall.Timeout, MaxResponseHeaderBytes: maxHeader,
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, notSentError{err}
				}
				return conn, nil
			},
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Del(rulecall.HeaderNotSent) // the gateway's own
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if _, ok := errors.AsType[notSentError](err); ok {
				refuse(w, "the service is not reached: "+err.Error())
				return
			}
			http.Error(w, "the service gave no answer: "+err.Error(), http.StatusBadGateway)
		},
	}
	return s
}

// refuse answers a call that was sent to no service.
func refuse(w http.ResponseWriter, why string) {
	w.Header().Set(rulecall.HeaderNotSent, why)
	http.Error(w, why, http.StatusServiceUnavailable)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.Header.Get(rulecall.HeaderPort), 10, 16)
	if err != nil || !slices.Contains(s.ports, uint16(port)) {
		refuse(w, fmt.Sprintf("port %.10q is not among serviceBus.ports of this gateway", r.Header.Get(rulecall.HeaderPort)))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), rulecall.Timeout)
	defer cancel()
	r = r.WithContext(ctx)
	address := net.JoinHostPort("127.0.0.1", strconv.FormatUint(port, 10))
	r.URL = &url.URL{Scheme: "http", Host: address, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery}
	r.Host = address
	r.Header.Del(rulecall.HeaderPort)
	r.Body = http.MaxBytesReader(w, r.Body, rulecall.MaxBody)
	s.proxy.ServeHTTP(w, r)
}

// Serve answers the calls that a listener gives until ctx ends, and then returns nil.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s, ReadHeaderTimeout: headerTimeout, IdleTimeout: headerTimeout, ReadTimeout: 2 * rulecall.Timeout, WriteTimeout: 2 * rulecall.Timeout,
		MaxHeaderBytes: maxHeader, ErrorLog: zap.NewStdLog(zap.NewNop()), BaseContext: func(net.Listener) context.Context { return ctx },
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			return fmt.Errorf("calls of services: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-gctx.Done()
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stop) != nil {
			_ = server.Close() // the outcome of what is on its way is unknown in the cloud
		}
		return nil
	})
	return g.Wait()
}
