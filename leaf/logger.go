package leaf

import (
	"fmt"

	"go.uber.org/zap"
)

// natsLogger bridges nats-server's log to zap. The server's notices tell of its normal life, so they are Debug; an operator
// sees the link's changes from the supervisor. Only the fatal ones matter to the program: they end Start.
type natsLogger struct {
	log   *zap.Logger
	fatal chan error // holds the first one
	// onError is told of each error.
	onError func(text string)
}

func (l *natsLogger) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *natsLogger) Debugf(format string, v ...any)  { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *natsLogger) Tracef(format string, v ...any)  { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *natsLogger) Warnf(format string, v ...any)   { l.log.Warn(fmt.Sprintf(format, v...)) }

// Errorf is Warn: what the server could not do by itself, the supervisor or a client's error decides about.
func (l *natsLogger) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Warn(text)
	l.onError(text)
}

// Fatalf does not end the process, as the server expects, but Start.
func (l *natsLogger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Errorf("nats-server: "+format, v...):
	default:
	}
}
