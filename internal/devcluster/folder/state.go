package folder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/toolchain"
)

// State is the content of state.json.
type State struct {
	Spec Spec `json:"spec"`
	// Programs are the programs of the last Up.
	Programs  toolchain.Paths            `json:"programs"`
	Ports     map[string]int             `json:"ports"`
	Processes map[string]daemon.Identity `json:"processes"`
}

func loadState(path string) (State, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, ErrNoCluster
	} else if err != nil {
		return State{}, fmt.Errorf("read state: %w", err)
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, fmt.Errorf("read state %s: %w", path, err)
	}
	return s, nil
}

func (s State) save(path string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := renameio.WriteFile(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// lockPoll is the retry interval of a waiting caller: flock cannot be interrupted.
const lockPoll = 100 * time.Millisecond

// Lock takes the folder's lock. The kernel releases it when the process ends.
func Lock(ctx context.Context, path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another frond that holds %s: %w", path, context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}
