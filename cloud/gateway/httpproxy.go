package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/internal/splice"
)

// connectProxy serves HTTP CONNECT for kube-apiserver.
type connectProxy struct {
	dialer   *nodeDialer
	refusals refusalLog
	metrics  *metrics
	log      *zap.Logger
}

// serveConnect serves HTTP CONNECT. It writes the answer itself, since kube-apiserver shows its user only the reason
// phrase of a refusal.
func (p *connectProxy) serveConnect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		p.metrics.refused.WithLabelValues(refusedRequest).Inc()
		http.Error(w, "this is a proxy for kube-apiserver: only CONNECT is served", http.StatusMethodNotAllowed)
		return
	}
	by := callerName(r)
	far, edge, failure := p.dialer.dialTarget(r.Context(), by, r.Host)
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		if far != nil {
			_ = far.Close() // abandoned
		}
		p.log.Warn("connection not taken over", zap.String("user", by), zap.Error(err))
		return
	}
	if failure == nil && buffered.Reader.Buffered() > 0 {
		_ = far.Close() // abandoned
		failure = &refusal{label: refusedRequest, text: "data before the answer"}
	}
	if failure != nil {
		p.refusals.recordRefusal(by, r.Host, failure)
		_, _ = fmt.Fprintf(near, "HTTP/1.1 %d %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", refusalStatus(failure), reasonPhrase(failure.Error()))
		_ = near.Close() // there is nothing more to send
		return
	}
	if _, err := near.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		_ = far.Close() // the client has gone
		_ = near.Close()
		return
	}
	// The request's own context ends only with this function, or with the gateway.
	if edge {
		spliceConns(r.Context(), near, far)
		return
	}
	p.relayConn(r.Context(), by, r.Host, near, far)
}

// callerName returns the name of the caller: that of its certificate if it has one.
func callerName(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	return "unix socket"
}

// relayConn connects a caller to a target that is not an edge node, and logs what a tunnel would log.
func (p *connectProxy) relayConn(ctx context.Context, who, target string, near, far net.Conn) {
	p.metrics.passed.Inc()
	p.metrics.passing.Inc()
	defer p.metrics.passing.Dec()
	began := time.Now()
	p.log.Info("connection passed on", zap.String("target", target), zap.String("user", who))
	result := spliceConns(ctx, near, far)
	p.log.Info("passed connection ended", zap.String("target", target), zap.String("user", who), zap.Duration("took", time.Since(began)),
		zap.Int64("sent", result.Sent), zap.Int64("received", result.Received), zap.Error(result.Err))
}

// spliceConns copies between two ends until they or ctx have ended.
func spliceConns(ctx context.Context, near, far net.Conn) splice.Result {
	defer context.AfterFunc(ctx, func() { _ = near.Close() })() // abandoned
	return splice.Join(near, far)
}
