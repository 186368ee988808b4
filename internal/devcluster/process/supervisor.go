package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/cgroups"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/folder"
)

// Supervisor starts components.
type Supervisor struct{ f *folder.Folder }

// NewSupervisor returns a supervisor of a folder's components.
func NewSupervisor(f *folder.Folder) *Supervisor { return &Supervisor{f: f} }

// Start starts a component that does not run. It returns at once.
func (s *Supervisor) Start(p Component) error {
	cmd := p.Command
	cmd.Log, cmd.Dir = s.f.Layout.LogFile(p.Name), s.f.Layout.Dir
	if p.Edge != "" {
		var holder daemon.Identity
		if p.InMountNamespace {
			holder = s.f.State.Processes[folder.HolderName(p.Edge)]
			if !holder.Alive() {
				return fmt.Errorf("start %s: the holder of its mount namespace is gone: run frond dev up", p.Name)
			}
		} else {
			_ = os.Remove(s.f.Layout.Gateway(p.Edge).HolderReadyFile()) // this is a holder: the ready file of its predecessor does not count
		}
		cmd = s.enterNamespaces(p.Edge, holder, cmd)
	}
	id, err := daemon.Start(cmd)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start %s: %w: the programs' cache has been cleaned: run frond dev up, which builds them again", p.Name, err)
	} else if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	s.f.State.Processes[p.Name] = id
	return s.f.Save()
}

// StartStage starts the stopped components of one stage and waits until all of the stage are ready.
func (s *Supervisor) StartStage(ctx context.Context, stage []Component) error {
	started := map[string]bool{}
	for _, p := range stage {
		if s.f.State.Processes[p.Name].Alive() {
			continue
		}
		if err := s.Start(p); err != nil {
			return err
		}
		started[p.Name] = true
	}
	for _, p := range stage {
		if err := s.AwaitReady(ctx, p); err != nil {
			return err
		}
		if started[p.Name] {
			s.f.Logf("%s is ready (pid %d)", p.Name, s.f.State.Processes[p.Name].PID)
		}
	}
	return nil
}

// AwaitReady waits until a component is ready. It fails if the process ends or ctx does.
func (s *Supervisor) AwaitReady(ctx context.Context, p Component) error {
	tick := time.NewTicker(100 * time.Millisecond) // another process has no event for "ready"
	defer tick.Stop()
	var last error
	for {
		if !s.f.State.Processes[p.Name].Alive() {
			return fmt.Errorf("%s ended; the last lines of its log are:\n%s", p.Name, tailLog(s.f.Layout.LogFile(p.Name)))
		}
		if p.Ready == nil {
			return nil
		}
		try, cancel := context.WithTimeout(ctx, tryTimeout)
		err := p.Ready(try)
		cancel()
		if err == nil {
			break
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w); the last lines of its log are:\n%s",
				p.Name, last, context.Cause(ctx), tailLog(s.f.Layout.LogFile(p.Name)))
		case <-tick.C:
		}
	}
	if p.OnReady != nil {
		return p.OnReady(ctx)
	}
	return nil
}

// CheckPortsFree returns an error that names every port that was free when it was chosen and that another process holds now.
func (s *Supervisor) CheckPortsFree(parts ...Component) error {
	var errs []error
	for _, p := range parts {
		if s.f.State.Processes[p.Name].Alive() {
			continue
		}
		for _, name := range p.Ports {
			if port := s.f.State.Ports[name]; !folder.PortFree(port) {
				errs = append(errs, fmt.Errorf("%s: port %d is in use by another process: end it (ss -ltnp 'sport = :%d' names it), "+
					"or run frond dev down and up again to choose other ports", name, port, port))
			}
		}
	}
	return errors.Join(errs...)
}

// portsTimeout bounds how long a killed process may still hold its ports: its leader is gone at once, the threads that hold its
// sockets a little later.
const portsTimeout = 5 * time.Second

// AwaitPorts waits until the ports of a component are free; its error names the process that holds one.
func (s *Supervisor) AwaitPorts(ctx context.Context, p Component) error {
	ctx, cancel := context.WithTimeout(ctx, portsTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := s.CheckPortsFree(p)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// enterNamespaces wraps a command so that it runs in the gateway's network namespace and is tracked; with holder also in its mount
// namespace. Each step of the wrapper execs the next, so the started process id stays valid.
func (s *Supervisor) enterNamespaces(edge string, holder daemon.Identity, cmd daemon.Command) daemon.Command {
	e := s.f.Layout.Gateway(edge)
	args := []string{
		"-c", `echo 0 > "$0/cgroup.procs" && exec "$@"`, cgroups.Tracker(e.Cgroup),
		"nsenter", "--net=" + s.f.Network().Path(edge),
	}
	if holder.PID != 0 {
		args = append(args, fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.PID))
	}
	args = append(args, "--", cmd.Path)
	cmd.Path, cmd.Args = "/bin/sh", append(args, cmd.Args...)
	return cmd
}

// tailLog returns the end of a log file, for an error message.
func tailLog(path string) string {
	const most, lines, width = 16 << 10, 12, 400
	f, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, 2); err == nil && size > most {
		_, _ = f.Seek(-most, 2)
	} else {
		_, _ = f.Seek(0, 0)
	}
	buf := make([]byte, most)
	n, _ := f.Read(buf)
	all := strings.Split(strings.TrimRight(string(buf[:n]), "\n"), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		if len(line) > width {
			all[i] = line[:width] + "…"
		}
	}
	return "  " + strings.Join(all, "\n  ") + "\n  (" + path + ")"
}
