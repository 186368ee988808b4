// Package serverlog is the log of nats-server within the MQTT broker.
package serverlog

import (
	"fmt"
	"strings"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Logger bridges nats-server's log to zap, as leaf does. Errors are mostly those of clients.
type Logger struct {
	log    *zap.Logger
	fatal  chan error // holds the first fatal error
	errors prometheus.Counter
}

var _ server.Logger = (*Logger)(nil)

// New returns a logger that counts errors.
func New(log *zap.Logger, errors prometheus.Counter) *Logger {
	return &Logger{log: log, fatal: make(chan error, 1), errors: errors}
}

// Fatal receives the first error with which the server would end the process, or after which it must be started again.
func (l *Logger) Fatal() <-chan error { return l.fatal }

// Debugf implements server.Logger.
func (l *Logger) Debugf(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }

// Tracef implements server.Logger.
func (l *Logger) Tracef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }

// Noticef implements server.Logger.
func (l *Logger) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }

// Warnf implements server.Logger.
func (l *Logger) Warnf(format string, v ...any) { l.log.Warn(fmt.Sprintf(format, v...)) }

// Errorf logs at Warn and counts. A failed write is fatal: the stream refuses all writes until it is opened again, also when the disk has space again. nats-server
// tells that in its log only.
func (l *Logger) Errorf(format string, v ...any) {
	l.errors.Inc()
	l.log.Warn(fmt.Sprintf(format, v...))
	if strings.Contains(format, "critical write error") || strings.Contains(format, "out of space") {
		l.end(format, v...)
	}
}

// Fatalf passes on the error instead of ending the process, which the server expects to end.
func (l *Logger) Fatalf(format string, v ...any) { l.end(format, v...) }

func (l *Logger) end(format string, v ...any) {
	select {
	case l.fatal <- fmt.Errorf("MQTT broker: "+format, v...):
	default:
	}
}
