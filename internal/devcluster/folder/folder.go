package folder

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// Folder is a cluster's folder: where its files are, and what state.json holds. Its methods must not run at the same time.
type Folder struct {
	Layout Layout
	// State is what was read last from state.json. A change counts only once Save has returned.
	State    State
	progress io.Writer
	began    time.Time
}

// New returns a folder without reading it. progress receives progress messages and may be nil.
func New(dir string, progress io.Writer) (*Folder, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find folder: %w", err)
	}
	if progress == nil {
		progress = io.Discard
	}
	return &Folder{Layout: NewLayout(abs), progress: progress, began: time.Now()}, nil
}

// Load reads the state, or returns ErrNoCluster.
func (f *Folder) Load() error {
	state, err := loadState(f.Layout.Path("state.json"))
	f.State = state
	return err
}

// Save writes the state.
func (f *Folder) Save() error { return f.State.save(f.Layout.Path("state.json")) }

// Lock takes the folder's lock, and waits for another process that holds it.
func (f *Folder) Lock(ctx context.Context) (unlock func(), err error) {
	return Lock(ctx, f.Layout.Path("lock"))
}

// Update locks the folder, reads the state again and runs do.
func (f *Folder) Update(ctx context.Context, do func() error) error {
	unlock, err := f.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := f.Load(); err != nil {
		return fmt.Errorf("%s: %w", f.Layout.Dir, err)
	}
	return do()
}

// StartClock starts the time that progress messages show.
func (f *Folder) StartClock() { f.began = time.Now() }

// Logf prints a progress message with the time since the start.
func (f *Folder) Logf(format string, args ...any) {
	_, _ = fmt.Fprintf(f.progress, "%6.1fs  %s\n", time.Since(f.began).Seconds(), fmt.Sprintf(format, args...))
}

// Network is the simulated network between the gateways and the cloud, where gateways have a network of their own.
func (f *Folder) Network() wan.Network { return wan.Network{Prefix: ID(f.Layout.Dir)} }

// CheckGateway returns an error unless edge is a gateway of the cluster.
func (f *Folder) CheckGateway(edge string) error {
	edges := Names("edge", f.State.Spec.Edges)
	if !slices.Contains(edges, edge) {
		return fmt.Errorf("%q is no gateway of this cluster; its gateways are %v", edge, edges)
	}
	return nil
}

// CheckStopped returns an error if the gateway runs.
func (f *Folder) CheckStopped(edge string) error {
	if err := f.CheckGateway(edge); err != nil {
		return err
	}
	if f.State.Processes[edge].Alive() {
		return fmt.Errorf("%s runs: kill it first", edge)
	}
	return nil
}

// WriteFile replaces a file atomically, and makes its folder.
func WriteFile(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := renameio.WriteFile(path, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
