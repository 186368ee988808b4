// Package failpoint kills the process at a named point of the code, for tests of what survives it.
//
// A point is one line, failpoint.At("deliver.saved"), between two steps of which the second may never happen. It is compiled in always, so
// that the tested binary is the shipped one, and does nothing unless the environment names it:
//
//	FROND_CRASH=deliver.saved    die when the point is passed for the first time
//	FROND_CRASH=deliver.saved:3  die when it is passed for the third time
//
// The process sends itself SIGKILL: no deferred call, no flush, as when the kernel or an operator kills it. Points lists all points. The
// variable is for tests only.
package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Env is the environment variable that names a point.
const Env = "FROND_CRASH"

// ReachedPrefix precedes the point's name in the last line that a dying process writes to stderr.
const ReachedPrefix = "crash point reached: "

// armedPoint is the point that the environment names.
type armedPoint struct {
	point string
	// remaining is the number of passes left, the fatal one included.
	remaining atomic.Int64
}

// loadArmed reads the environment once; afterwards it costs one atomic load.
var loadArmed = sync.OnceValue(func() *armedPoint { return parseEnv(os.Getenv(Env)) }) //nolint:gochecknoglobals // the environment does not change either

// parseEnv returns nil for a value that names no point.
func parseEnv(value string) *armedPoint {
	point, count, counted := strings.Cut(value, ":")
	if point == "" {
		return nil
	}
	t := &armedPoint{point: point}
	t.remaining.Store(1)
	if n, err := strconv.ParseInt(count, 10, 64); counted && err == nil {
		t.remaining.Store(n)
	}
	return t
}

// shouldDie reports whether the process dies at this pass of the point.
func (t *armedPoint) shouldDie(point string) bool {
	return t != nil && t.point == point && t.remaining.Add(-1) == 0
}

// At kills the process if the environment names this point.
func At(point string) {
	if !loadArmed().shouldDie(point) {
		return
	}
	_, _ = fmt.Fprintln(os.Stderr, ReachedPrefix+point)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // cannot fail for the own process
	select {}                                      // this goroutine does nothing more, however late the signal arrives
}
