package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/toolchain"
)

// The states of a test, as the end-to-end program writes them.
const (
	statePassed  = "passed"
	stateSkipped = "skipped" // the test skipped itself because it does not apply
	stateFailed  = "failed"
)

// result is one file of the store, written by tools/conformance/suite/e2e.
type result struct {
	Test    string  `json:"test"`
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"`
	Log     string  `json:"log,omitempty"`
	file    string
}

// info identifies the tested programs. Results of other programs do not count.
type info struct {
	Kubernetes string    `json:"kubernetes"` // the version that the API server reports
	Frond      string    `json:"frond"`
	When       time.Time `json:"when"`
	Programs   []string  `json:"programs"` // folders of the cache, whose names depend on their inputs
	Machine    string    `json:"machine"`
	Tests      []string  `json:"tests,omitempty"` // all conformance tests of this version
}

func runInfo(paths toolchain.Paths, now time.Time) info {
	machine := fmt.Sprintf("%d cores", runtime.NumCPU())
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		machine += ", Linux " + unix.ByteSliceToString(name.Release[:])
	}
	i := info{Machine: machine, When: now}
	for _, p := range []string{paths.Kube, paths.Frond, paths.Containerd, paths.E2E, paths.TestImages} {
		i.Programs = append(i.Programs, filepath.Base(filepath.Dir(p)))
	}
	if paths.ControlPlane != "" {
		i.Programs = append(i.Programs, filepath.Base(paths.ControlPlane))
	}
	return i
}

// A resultStore is a folder with one file for each finished test, and one that identifies the tested programs.
type resultStore struct{ dir string }

const infoFile = "info.json"

// open removes the results of other programs.
func (s resultStore) open(now info) error {
	before, err := s.readInfo()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if fmt.Sprint(before.Programs, before.Machine) != fmt.Sprint(now.Programs, now.Machine) {
		if err := os.RemoveAll(s.dir); err != nil {
			return fmt.Errorf("remove the results of other programs: %w", err)
		}
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of results: %w", err)
	}
	return s.writeInfo(now)
}

// writeInfo records the tested programs.
func (s resultStore) writeInfo(now info) error {
	data, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return fmt.Errorf("encode what is tested: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, infoFile), data, 0o644); err != nil {
		return fmt.Errorf("note what is tested: %w", err)
	}
	return nil
}

func (s resultStore) readInfo() (info, error) {
	var i info
	data, err := os.ReadFile(filepath.Join(s.dir, infoFile))
	if err != nil {
		return i, fmt.Errorf("read what was tested: %w", err)
	}
	if err := json.Unmarshal(data, &i); err != nil {
		return i, fmt.Errorf("read what was tested: %w", err)
	}
	return i, nil
}

// load returns all results by test name.
func (s resultStore) load() (map[string]result, error) {
	files, err := filepath.Glob(filepath.Join(s.dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("find results: %w", err)
	}
	results := map[string]result{}
	for _, f := range files {
		if filepath.Base(f) == infoFile {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read a result: %w", err)
		}
		r := result{file: f}
		if err := json.Unmarshal(data, &r); err != nil {
			return nil, fmt.Errorf("read the result %s: %w", f, err)
		}
		results[r.Test] = r
	}
	return results, nil
}

// removeResults removes the results of these tests, so that they are run again.
func (s resultStore) removeResults(tests []string) error {
	results, err := s.load()
	if err != nil {
		return err
	}
	for _, t := range tests {
		if r, there := results[t]; there {
			if err := os.Remove(r.file); err != nil {
				return fmt.Errorf("forget a result: %w", err)
			}
		}
	}
	return nil
}

// followResults prints each new result until it is stopped.
func (s resultStore) followResults(ctx context.Context, out io.Writer, total int) (stop func()) {
	const look = 2 * time.Second // a test takes several
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	before, err := s.load()
	if err != nil {
		before = nil // the caller's next poll reports the error
	}
	report := func() {
		now, err := s.load()
		if err != nil {
			return
		}
		for name, r := range now {
			if _, there := before[name]; !there {
				fmt.Fprintf(out, "%4d/%d %-7s %5.0f s  %s\n", len(now), total, r.State, r.Seconds, name)
			}
		}
		before = now
	}
	work.Go(func() {
		tick := time.NewTicker(look)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				report()
				return
			case <-tick.C:
				report()
			}
		}
	})
	return func() { cancel(); work.Wait() }
}
