// Package logging makes the one logger of a process and routes the libraries' own loggers to it.
package logging

import (
	"fmt"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// New makes a logger that writes one JSON line per event to stderr. level is debug, info, warn or error; "" is info.
func New(level string) (*zap.Logger, error) {
	at := zapcore.InfoLevel
	if level != "" {
		if err := at.UnmarshalText([]byte(level)); err != nil {
			return nil, fmt.Errorf("log level: %w", err)
		}
	}
	cfg := zap.NewProductionConfig()
	cfg.Level = zap.NewAtomicLevelAt(at)
	cfg.EncoderConfig.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	cfg.EncoderConfig.TimeKey = "time"
	cfg.DisableCaller = true
	cfg.DisableStacktrace = true
	cfg.Sampling = nil
	return cfg.Build()
}

// Bridge routes the logs of Kubernetes' libraries to log and returns log as a logr.Logger. Call it once per process.
func Bridge(log *zap.Logger) logr.Logger {
	bridged := zapr.NewLogger(log.WithOptions(zap.IncreaseLevel(zapcore.InfoLevel)))
	klog.SetLogger(bridged)
	return bridged
}
