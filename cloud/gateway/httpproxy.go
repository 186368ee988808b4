package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"go.uber.org/zap"
)

// serveConnect serves HTTP CONNECT. It writes the answer itself, since kube-apiserver shows its user only the reason
// phrase of a refusal.
func (g *Gateway) serveConnect(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		g.metrics.refused.WithLabelValues(refusedRequest).Inc()
		http.Error(w, "this is a proxy for kube-apiserver: only CONNECT is served", http.StatusMethodNotAllowed)
		return
	}
	by := callerName(r)
	far, edge, failure := g.dialTarget(r.Context(), by, r.Host)
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		if far != nil {
			_ = far.Close() // abandoned
		}
		g.log.Warn("connection not taken over", zap.String("user", by), zap.Error(err))
		return
	}
	if failure == nil && buffered.Reader.Buffered() > 0 {
		_ = far.Close() // abandoned
		failure = &refusal{label: refusedRequest, text: "data before the answer"}
	}
	if failure != nil {
		g.recordRefusal(by, r.Host, failure)
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
	g.relayConn(r.Context(), by, r.Host, near, far)
}

// recordRefusal counts a refusal, and logs it unless the tunnel has done that.
func (g *Gateway) recordRefusal(by, target string, failure error) {
	label, logged := refusedDial, false
	if r, ok := errors.AsType[*refusal](failure); ok {
		label, logged = r.label, r.logged
	}
	g.metrics.refused.WithLabelValues(label).Inc()
	if !logged {
		g.log.Info("refused", zap.String("target", reasonPhrase(target)), zap.String("user", by), zap.Error(failure))
	}
}

// refusalStatus returns the HTTP status of a refusal.
func refusalStatus(failure error) int {
	r, ok := errors.AsType[*refusal](failure)
	switch {
	case ok && (r.label == refusedSilent || r.label == refusedBlocked || r.label == refusedConflict):
		return http.StatusServiceUnavailable
	case ok && r.label == refusedRequest:
		return http.StatusBadRequest
	}
	return http.StatusBadGateway
}

// maxPhrase keeps the line of a refusal readable.
const maxPhrase = 400

// reasonPhrase converts a text for the status line of an answer.
func reasonPhrase(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return ' '
		}
		return r
	}, text)
	return text[:min(len(text), maxPhrase)]
}

// callerName returns the name of the caller: that of its certificate if it has one.
func callerName(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return r.TLS.PeerCertificates[0].Subject.CommonName
	}
	return "unix socket"
}
