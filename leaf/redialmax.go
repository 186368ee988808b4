package leaf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// redialMaxFile holds the pause that the cloud told last, as a duration such as "40s".
	redialMaxFile = "redial-max"
	// redialMaxLimit bounds it, so that no mistake in the cloud keeps a gateway away for longer: 100,000 nodes then dial 330 times a second.
	redialMaxLimit = 5 * time.Minute
	// redialMaxBytes is more than the longest duration takes.
	redialMaxBytes = 64
)

// redialMax is the longest pause between two dials: the configured one, or a longer one that the cloud told and that is kept in a file, as
// it is needed when the cloud cannot be reached.
type redialMax struct {
	dir        string
	configured time.Duration
	log        *zap.Logger

	mu   sync.Mutex
	told time.Duration // guarded by mu; 0 before anything was told
}

// duration returns the pause that is valid now.
func (r *redialMax) duration() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.configured, r.told)
}

// load reads what was told before. Without a valid file the configured pause is used until the next attach.
func (r *redialMax) load() {
	told, err := readDuration(filepath.Join(r.dir, redialMaxFile))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.log.Warn("longest pause between dials unknown, using the configured one until the cloud tells it again", zap.Error(err))
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = min(told, redialMaxLimit)
}

// set takes what the cloud told, and writes it when it has changed. A lost write costs only what the next attach tells again, so it is not
// synced.
func (r *redialMax) set(told time.Duration) {
	told = min(told, redialMaxLimit)
	r.mu.Lock()
	unchanged := r.told == told
	r.told = told
	r.mu.Unlock()
	if unchanged {
		return
	}
	path := filepath.Join(r.dir, redialMaxFile)
	next := path + ".new"
	err := os.WriteFile(next, []byte(told.String()+"\n"), 0o600)
	if err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		r.log.Warn("longest pause between dials not saved: a restart without a link uses the configured one", zap.Error(err))
	}
}

// readDuration reads a file that holds one positive duration.
func readDuration(path string) (d time.Duration, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err := io.ReadAll(io.LimitReader(f, redialMaxBytes))
	if err != nil {
		return 0, err
	}
	if d, err = time.ParseDuration(strings.TrimSpace(string(data))); err != nil || d <= 0 {
		return 0, fmt.Errorf("%s holds no positive duration: %q", path, data)
	}
	return d, nil
}
