// Package daemon starts processes that outlive their parent and finds them again later.
//
// A process is identified by its id, its start time in the kernel and the boot, so a recycled process id is never taken for it
// and never signalled. The package keeps no state in memory: any holder of an Identity can query and signal the process.
// It is Linux only.
package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone reports that the process of an Identity no longer runs.
var ErrGone = errors.New("process is gone")

// pollInterval is the polling interval of a wait: the kernel has no event for processes that are not our children, short of a pidfd
// for each. A user does not notice waits this short.
const pollInterval = 10 * time.Millisecond

// Identity distinguishes one process from every other, also from a later one with the same id.
type Identity struct {
	PID int `json:"pid"`
	// Ticks is the start time in clock ticks since boot, field 22 of /proc/PID/stat.
	Ticks uint64 `json:"ticks"`
	// Boot is the kernel's boot id.
	Boot string `json:"boot"`
	// Started is the start time in readable form.
	Started time.Time `json:"started"`
}

// Command describes the process to start.
type Command struct {
	// Path is the absolute path of the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Name is argv[0]; "" means Path. A multi-call program selects its applet by it.
	Name string
	// Env is added to a minimal environment (PATH and HOME).
	Env []string
	// Dir is the working directory.
	Dir string
	// Log receives stdout and stderr, appended.
	Log string
}

// Start starts the process in a session of its own and returns its identity. Neither the end of this process nor a Ctrl-C in its
// terminal reaches it.
func Start(c Command) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	if err := os.MkdirAll(filepath.Dir(c.Log), 0o755); err != nil {
		return Identity{}, fmt.Errorf("make log folder: %w", err)
	}
	log, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Identity{}, fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = log.Close() }()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return Identity{}, err
	}
	defer func() { _ = null.Close() }()
	name := c.Name
	if name == "" {
		name = c.Path
	}
	p, err := os.StartProcess(c.Path, append([]string{name}, c.Args...), &os.ProcAttr{
		Dir:   c.Dir,
		Env:   append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, c.Env...),
		Files: []*os.File{null, log, log},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return Identity{}, fmt.Errorf("start %s: %w", c.Path, err)
	}
	id := Identity{PID: p.Pid, Boot: boot, Started: time.Now().UTC().Truncate(time.Millisecond)}
	stat, err := readStat(p.Pid) // a child keeps its id until it is waited for, so this is the same process
	id.Ticks = stat.ticks
	if releaseErr := p.Release(); err == nil {
		err = releaseErr
	}
	if err != nil {
		return Identity{}, fmt.Errorf("identify %s: %w", c.Path, err)
	}
	return id, nil
}

// Alive reports whether the process runs. A zombie is not alive; Alive reaps it if it is a child of this process.
func (id Identity) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	if boot, err := bootID(); err != nil || boot != id.Boot {
		return false
	}
	stat, err := readStat(id.PID)
	if err != nil || stat.ticks != id.Ticks {
		return false
	}
	if stat.state == 'Z' && stat.threads > 1 {
		return true // the first thread has ended, and others still hold the files and ports
	}
	if stat.hasEnded() {
		var status unix.WaitStatus
		_, _ = unix.Wait4(id.PID, &status, unix.WNOHANG, nil) // ECHILD: the child of another process
		return false
	}
	return true
}

// Signal sends a signal to exactly this process, or returns ErrGone.
func (id Identity) Signal(sig syscall.Signal) error {
	p, err := os.FindProcess(id.PID) // holds a pidfd: from here on the id cannot be recycled
	if err != nil {
		return fmt.Errorf("find process %d: %w", id.PID, err)
	}
	defer func() { _ = p.Release() }()
	if !id.Alive() {
		return ErrGone
	}
	if err := p.Signal(sig); errors.Is(err, os.ErrProcessDone) {
		return ErrGone
	} else if err != nil {
		return fmt.Errorf("signal process %d: %w", id.PID, err)
	}
	return nil
}

// Wait returns once the process is gone.
func (id Identity) Wait(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for id.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for process %d: %w", id.PID, context.Cause(ctx))
		case <-tick.C:
		}
	}
	return nil
}

// Stop sends SIGTERM and, if the process has not ended after grace, SIGKILL. A process that is gone is no error.
func (id Identity) Stop(ctx context.Context, grace time.Duration) error {
	if err := id.Signal(syscall.SIGTERM); errors.Is(err, ErrGone) {
		return nil
	} else if err != nil {
		return err
	}
	gctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if id.Wait(gctx) == nil {
		return nil
	}
	return id.Kill(ctx)
}

// Kill sends SIGKILL and waits for the end. A process that is gone is no error.
func (id Identity) Kill(ctx context.Context) error {
	if err := id.Signal(syscall.SIGKILL); errors.Is(err, ErrGone) {
		return nil
	} else if err != nil {
		return err
	}
	return id.Wait(ctx)
}

// RSS is the resident memory in bytes; 0 if the process is gone.
func (id Identity) RSS() int64 {
	if !id.Alive() {
		return 0
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", id.PID))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// Identify returns the identity of a running process.
func Identify(pid int) (Identity, error) {
	boot, err := bootID()
	if err != nil {
		return Identity{}, err
	}
	stat, err := readStat(pid)
	if err != nil {
		return Identity{}, err
	}
	if stat.hasEnded() {
		return Identity{}, ErrGone
	}
	return Identity{PID: pid, Ticks: stat.ticks, Boot: boot}, nil
}

// processStat is what the kernel shows of a process in one read. A list of /proc/PID/task is not: it may lack threads while others end.
type processStat struct {
	ticks   uint64 // start time
	state   byte
	threads uint64 // the first one, ended or not, and those that live
}

// hasEnded reports whether the first thread has ended.
func (s processStat) hasEnded() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(pid int) (processStat, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return processStat{}, ErrGone
	} else if err != nil {
		return processStat{}, err
	}
	// The program's name is in parentheses and may itself contain spaces and parentheses: fields are counted after the last one.
	end := bytes.LastIndexByte(data, ')')
	fields := strings.Fields(string(data[end+1:]))
	const stateField, threadsField, startField = 0, 17, 19 // fields 3, 20 and 22 of proc(5), counted after the name
	if end < 0 || len(fields) <= startField {
		return processStat{}, fmt.Errorf("stat of process %d is not understood", pid)
	}
	stat := processStat{state: fields[stateField][0]}
	if stat.threads, err = strconv.ParseUint(fields[threadsField], 10, 64); err != nil {
		return processStat{}, fmt.Errorf("threads of process %d: %w", pid, err)
	}
	if stat.ticks, err = strconv.ParseUint(fields[startField], 10, 64); err != nil {
		return processStat{}, fmt.Errorf("start time of process %d: %w", pid, err)
	}
	return stat, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
