// Package crash kills the process at a named point of the code, for tests of what survives it.
//
// A point is one line, crash.At("deliver.saved"), between two steps of which the second may never happen. It is compiled
// in always, so that what is tested is what is shipped, and does nothing unless the environment names it:
//
//	FROND_CRASH=deliver.saved    die when the point is passed for the first time
//	FROND_CRASH=deliver.saved:3  die when it is passed for the third time
//
// Dying is SIGKILL to itself: no deferred call, no flush, no goodbye, as when the kernel or a person kills it.
// Points lists all there are. The variable is for tests only.
package crash

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Env is the variable that names a point.
const Env = "FROND_CRASH"

// ReachedPrefix is what a dying process writes to stderr before the point's name.
const ReachedPrefix = "crash point reached: "

// armedPoint is the point that the environment names.
type armedPoint struct {
	point string
	// remaining is how often it is still passed alive, and once more.
	remaining atomic.Int64
}

// loadArmed reads the environment once; afterwards it costs one atomic load.
var loadArmed = sync.OnceValue(func() *armedPoint { return parseEnv(os.Getenv(Env)) }) //nolint:gochecknoglobals // the environment does not change either

// parseEnv returns nil for what names no point.
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

// shouldDie tells whether the process dies here and now.
func (t *armedPoint) shouldDie(point string) bool {
	return t != nil && t.point == point && t.remaining.Add(-1) == 0
}

// At dies if the environment says so.
func At(point string) {
	if !loadArmed().shouldDie(point) {
		return
	}
	_, _ = fmt.Fprintln(os.Stderr, ReachedPrefix+point)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // cannot fail for oneself
	select {}                                      // nothing more of this goroutine, however long the signal takes
}
