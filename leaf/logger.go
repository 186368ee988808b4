package leaf

import (
	"fmt"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// natsLogger bridges nats-server's log to zap. The server's notices report normal operation, so they are Debug; the supervisor logs the
// link's changes for the operator. Only fatal errors matter to the program: they end Start.
type natsLogger struct {
	log   *zap.Logger
	fatal chan error // holds the first fatal error
	// onError is called with each error.
	onError func(text string)
	// onNotice is called with each notice.
	onNotice func(text string)
}

func (l *natsLogger) Debugf(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *natsLogger) Tracef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }
func (l *natsLogger) Warnf(format string, v ...any)  { l.log.Warn(fmt.Sprintf(format, v...)) }

// Noticef logs at Debug.
func (l *natsLogger) Noticef(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Debug(text)
	l.onNotice(text)
}

// Errorf logs at Warn: the supervisor or a client's error decides about faults that the server could not handle itself.
func (l *natsLogger) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Warn(text)
	l.onError(text)
}

// Fatalf ends Start instead of the process, which the server expects to end.
func (l *natsLogger) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Errorf("nats-server: "+format, v...):
	default:
	}
}

// logClientError returns a handler of the errors that no call of a client returns, such as dropped messages. Without one nats.go writes
// them to stderr, where they are no JSON lines.
func logClientError(log *zap.Logger) nats.ErrHandler {
	return func(nc *nats.Conn, sub *nats.Subscription, err error) {
		fields := []zap.Field{zap.String("connection", nc.Opts.Name), zap.Error(err)}
		if sub != nil {
			fields = append(fields, zap.String("subject", sub.Subject))
		}
		log.Warn("connection to the leaf server", fields...)
	}
}
