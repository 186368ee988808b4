package gateway

import (
	"errors"
	"net/http"
	"strings"

	"go.uber.org/zap"
)

// refusal is the error of a request that is not served; its text is for the user.
type refusal struct {
	label string
	text  string
	// logged says that the tunnel has already logged it.
	logged bool
}

func (r *refusal) Error() string { return r.text }

// refusalLog counts and logs refusals.
type refusalLog struct {
	metrics *metrics
	log     *zap.Logger
}

// recordRefusal counts a refusal, and logs it unless the tunnel has done that.
func (l refusalLog) recordRefusal(by, target string, failure error) {
	label, logged := refusedDial, false
	if r, ok := errors.AsType[*refusal](failure); ok {
		label, logged = r.label, r.logged
	}
	l.metrics.refused.WithLabelValues(label).Inc()
	if !logged {
		l.log.Info("refused", zap.String("target", reasonPhrase(target)), zap.String("user", by), zap.Error(failure))
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
