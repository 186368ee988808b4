package kubelet

import (
	"flag"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
)

// klogCore writes the kubelet's log: klog's V(n) are negative levels, kept up to a verbosity, and dropped after the end.
type klogCore struct {
	zapcore.Core
	verbosity int
	muted     *atomic.Bool
}

// newLogger returns the kubelet's logger. After cut is set it writes nothing, so that the remaining goroutines of upstream
// do not write to a log that its owner has closed.
func newLogger(log *zap.Logger, verbosity int, cut *atomic.Bool) logr.Logger {
	bridged := log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return klogCore{Core: core, verbosity: verbosity, muted: cut}
	}))
	return zapr.NewLogger(bridged)
}

func (b klogCore) Enabled(level zapcore.Level) bool {
	if b.muted.Load() {
		return false
	}
	if level < zapcore.InfoLevel {
		return int(-level) <= b.verbosity && b.Core.Enabled(zapcore.DebugLevel)
	}
	return b.Core.Enabled(level)
}

func (b klogCore) With(fields []zapcore.Field) zapcore.Core {
	return klogCore{Core: b.Core.With(fields), verbosity: b.verbosity, muted: b.muted}
}

func (b klogCore) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !b.Enabled(entry.Level) {
		return checked
	}
	return checked.AddCore(entry, b)
}

func (b klogCore) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if b.muted.Load() {
		return nil
	}
	entry.Level = max(entry.Level, zapcore.DebugLevel)
	return b.Core.Write(entry, fields)
}

// bridgeKlog sends the log of all Kubernetes libraries in this process to logger. It applies to the process, not to one
// kubelet: the last call wins.
func bridgeKlog(logger logr.Logger, verbosity int) error {
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
		return fmt.Errorf("set klog verbosity: %w", err)
	}
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
	return nil
}
