package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/certs"
)

const (
	// scrapeTimeout bounds one request; Prometheus gives up after 10 s by default.
	scrapeTimeout = 30 * time.Second
	// maxScrapeBytes bounds the bytes that are read of a node's answer: a kubelet with 110 pods has 3 MB of cAdvisor metrics.
	maxScrapeBytes = 64 << 20
	// scrapeIdleTimeout keeps the connection to a node open for the next scrape of its other paths.
	scrapeIdleTimeout = 20 * time.Second
)

// The errors of an Authorizer.
var (
	// ErrUnknownUser is returned if the request's credentials identify no user.
	ErrUnknownUser = errors.New("no known user")
	// ErrForbidden is returned if the user lacks the right.
	ErrForbidden = errors.New("forbidden")
)

// Authorizer identifies the sender of a request, and checks whether they may get a subresource of a Node. The error is
// ErrUnknownUser, ErrForbidden or a fault.
type Authorizer func(r *http.Request, node, subresource string) (user string, err error)

// scrapePaths returns all paths of a kubelet that can be read, each with the subresource of nodes for which the kubelet
// also requires the right.
func scrapePaths() map[string]string {
	return map[string]string{
		"metrics": "metrics", "metrics/cadvisor": "metrics", "metrics/probes": "metrics", "metrics/resource": "metrics",
		"metrics/slis": "metrics", "stats/summary": "stats",
	}
}

// scraper forwards authorized requests of metrics to nodes.
type scraper struct {
	cfg       Config
	authorize Authorizer
	dialer    *nodeDialer
	refusals  refusalLog
	log       *zap.Logger
}

// scrapeHandler serves /nodes/NODE/kubelet/PATH and /nodes/NODE/edgecore/metrics. idle closes the connections that are kept open.
func (s *scraper) scrapeHandler() (handler http.Handler, idle func()) {
	transport := &http.Transport{
		DialContext:        s.dialScrape,
		DialTLSContext:     s.dialScrapeTLS,
		DisableCompression: true, // compression is negotiated end to end
		IdleConnTimeout:    scrapeIdleTimeout, ResponseHeaderTimeout: scrapeTimeout, MaxConnsPerHost: 4,
		MaxResponseHeaderBytes: maxHeader,
	}
	mux := http.NewServeMux()
	for path, subresource := range scrapePaths() {
		mux.HandleFunc("GET /nodes/{node}/kubelet/"+path, func(w http.ResponseWriter, r *http.Request) {
			s.serveScrape(w, r, transport, subresource, func(n Node) string {
				return "https://" + net.JoinHostPort(r.PathValue("node"), strconv.Itoa(int(n.KubeletPort))) + "/" + path
			})
		})
	}
	mux.HandleFunc("GET /nodes/{node}/edgecore/metrics", func(w http.ResponseWriter, r *http.Request) {
		s.serveScrape(w, r, transport, "metrics", func(Node) string {
			return "http://" + net.JoinHostPort(r.PathValue("node"), strconv.Itoa(config.EdgeMetricsPort)) + "/metrics"
		})
	})
	return mux, transport.CloseIdleConnections
}

// serveScrape authorizes a request and forwards it to the node without the sender's credentials.
func (s *scraper) serveScrape(w http.ResponseWriter, r *http.Request, transport http.RoundTripper, subresource string, url func(Node) string) {
	name := r.PathValue("node")
	user, err := s.authorize(r, name, subresource)
	switch {
	case errors.Is(err, ErrUnknownUser):
		s.refuseScrape(w, user, r, http.StatusUnauthorized, err)
		return
	case errors.Is(err, ErrForbidden):
		s.refuseScrape(w, user, r, http.StatusForbidden, err)
		return
	case err != nil:
		s.refuseScrape(w, user, r, http.StatusInternalServerError, err)
		return
	}
	node, known := s.dialer.nodes.Node(r.Context(), name)
	if !known || !node.Edge {
		s.refuseScrape(w, user, r, http.StatusNotFound, fmt.Errorf("%q is not an edge node", name))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), scrapeTimeout)
	defer cancel()
	out, err := http.NewRequestWithContext(ctx, http.MethodGet, url(node), nil)
	if err != nil {
		s.refuseScrape(w, user, r, http.StatusBadRequest, err)
		return
	}
	out.URL.RawQuery = r.URL.RawQuery
	for _, header := range []string{"Accept", "Accept-Encoding", "User-Agent"} {
		out.Header[header] = r.Header[header]
	}
	reply, err := transport.RoundTrip(out)
	if err != nil {
		s.refuseScrape(w, user, r, http.StatusBadGateway, err)
		return
	}
	defer func() { _ = reply.Body.Close() }()
	if reply.StatusCode != http.StatusOK { // a redirect, for example, would lead Prometheus elsewhere
		s.refuseScrape(w, user, r, http.StatusBadGateway, fmt.Errorf("node %s answers %d", name, reply.StatusCode))
		return
	}
	for _, header := range []string{"Content-Type", "Content-Encoding", "Content-Length"} {
		w.Header()[header] = reply.Header[header]
	}
	if _, err := io.Copy(w, io.LimitReader(reply.Body, maxScrapeBytes)); err != nil {
		s.log.Debug("scrape broke", zap.String("node", name), zap.Error(err))
	}
}

func (s *scraper) refuseScrape(w http.ResponseWriter, user string, r *http.Request, status int, why error) {
	if _, ok := errors.AsType[*refusal](why); !ok && status < http.StatusInternalServerError {
		why = &refusal{label: refusedForbidden, text: why.Error()}
	}
	s.refusals.recordRefusal(user, r.URL.Path, why)
	http.Error(w, why.Error(), status)
}

// dialScrape is the transport's dial function to a node.
func (s *scraper) dialScrape(ctx context.Context, _, target string) (net.Conn, error) {
	host, portText, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, err
	}
	node, known := s.dialer.nodes.Node(ctx, host)
	if !known || !node.Edge {
		return nil, &refusal{label: refusedRequest, text: fmt.Sprintf("%q is not an edge node", host)}
	}
	return s.dialer.dialPort(ctx, "scrape", host, node, uint16(port))
}

// dialScrapeTLS verifies that the answering kubelet is that node's.
func (s *scraper) dialScrapeTLS(ctx context.Context, network, target string) (net.Conn, error) {
	raw, err := s.dialScrape(ctx, network, target)
	if err != nil {
		return nil, err
	}
	conn, err := s.handshakeTLS(ctx, raw, target)
	if err != nil {
		_ = raw.Close() // abandoned
		return nil, err
	}
	return conn, nil
}

func (s *scraper) handshakeTLS(ctx context.Context, raw net.Conn, target string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	roots, err := certs.LoadPool(s.cfg.KubeletCAFile)
	if err != nil {
		return nil, fmt.Errorf("authority of kubelets: %w", err)
	}
	own, err := tls.LoadX509KeyPair(s.cfg.KubeletCertFile, s.cfg.KubeletKeyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate for kubelets: %w", err)
	}
	conn := tls.Client(raw, &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: host, Certificates: []tls.Certificate{own},
	})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("node %s: %w", host, err)
	}
	return conn, nil
}
