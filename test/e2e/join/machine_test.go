package join_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/test/kit"
)

// machine is a gateway: systemd is its process 1, /etc and /var/lib are its disk. It has the two programs and nothing else of Frond.
type machine struct {
	box
	*process
	pid int // of process 1, in this machine's namespace
}

// systemdTargets are upstream's units in a machine.
var systemdTargets = []string{
	"basic.target", "multi-user.target", "sysinit.target", "shutdown.target", "network-online.target", "network.target", "local-fs.target",
	"sockets.target", "timers.target", "paths.target", "slices.target", "final.target", "umount.target", "rescue.target",
}

func (c *bareCluster) newMachine(t *testing.T, name string) *machine {
	t.Helper()
	dir := filepath.Join(c.dir, "machine-"+name)
	etc, lib, units, empty := filepath.Join(dir, "etc"), filepath.Join(dir, "lib"), filepath.Join(dir, "units"), filepath.Join(dir, "empty")
	for _, d := range []string{filepath.Join(etc, "systemd", "system"), lib, units, empty} {
		kit.Must(t, os.MkdirAll(d, 0o755))
	}
	for _, unit := range systemdTargets {
		data, err := os.ReadFile(filepath.Join("/lib/systemd/system", unit))
		kit.Must(t, err)
		kit.Must(t, os.WriteFile(filepath.Join(units, unit), data, 0o644))
	}
	for _, file := range []string{"passwd", "group", "nsswitch.conf"} {
		data, err := os.ReadFile(filepath.Join("/etc", file))
		kit.Must(t, err)
		kit.Must(t, os.WriteFile(filepath.Join(etc, file), data, 0o644))
	}
	kit.Must(t, os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1 localhost\n"+frontAddress+" hub.example.com\n"), 0o644))
	kit.Must(t, os.WriteFile(filepath.Join(etc, "hostname"), []byte(name+"\n"), 0o644))
	kit.Must(t, os.WriteFile(filepath.Join(etc, "resolv.conf"), nil, 0o644)) // the kubelet makes those of pods from it
	m := &machine{box: box{
		name: name, netns: c.namespaceName(name), dir: dir, init: true, env: []string{"container=frond"},
		binds: map[string]string{
			"/etc": etc, "/var/lib": lib, "/usr/lib/systemd/system": units, "/usr/lib/systemd/system-generators": empty,
			"/usr/local/bin/frond": c.programs.Frond, "/usr/local/bin/edgecore": c.programs.Edgecore,
		},
		prepare: makeCgroups(t, c.prefix+"-"+name),
	}}
	m.boot(t)
	return m
}

// makeCgroups makes cgroup hierarchies for a machine. It returns the commands that its first process runs for them.
func makeCgroups(t *testing.T, name string) string {
	t.Helper()
	const root = "/sys/fs/cgroup"
	var s strings.Builder
	if _, err := os.Stat(root + "/cgroup.controllers"); err == nil {
		own := filepath.Join(root, name)
		kit.Must(t, os.MkdirAll(own, 0o755))
		t.Cleanup(func() { removeCgroups(t, own) })
		fmt.Fprintf(&s, "mount --bind %s $root%s\n", own, root)
		return s.String()
	}
	fmt.Fprintf(&s, "mount -t tmpfs -o mode=755 tmpfs $root%s\n", root)
	for _, hierarchy := range []string{"systemd", "cpu", "memory", "pids"} {
		own := filepath.Join(root, hierarchy, name)
		kit.Must(t, os.MkdirAll(own, 0o755))
		t.Cleanup(func() { removeCgroups(t, own) })
		fmt.Fprintf(&s, "mkdir $root%[1]s/%[2]s\nmount --bind %[3]s $root%[1]s/%[2]s\n", root, hierarchy, own)
	}
	return s.String()
}

// removeCgroups removes a tree of cgroups. Killed processes vanish asynchronously.
func removeCgroups(t *testing.T, root string) {
	t.Helper()
	var left error
	for end := time.Now().Add(waitTimeout); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			left = unix.Rmdir(dir)
		}
		if left == nil || errors.Is(left, unix.ENOENT) {
			return
		}
	}
	t.Errorf("cgroup %s stays: %v", root, left)
}

// boot starts the machine, and waits until its units are started.
func (m *machine) boot(t *testing.T) {
	t.Helper()
	m.process = m.startProcess(t, "/lib/systemd/systemd", "--system", "--unit=multi-user.target", "--log-target=console", "--show-status=no")
	eventually(t, m.name+" boots", func(ctx context.Context) error {
		if err := m.checkAlive(); err != nil {
			return kit.Permanent(err)
		}
		parent := m.cmd.Process.Pid
		children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", parent))
		if err != nil {
			return err
		}
		if m.pid, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
			return fmt.Errorf("process 1 is not there yet: %w", err)
		}
		out, err := m.shellCommand(ctx, "systemctl is-active multi-user.target").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// shellCommand returns a command for a line in a root shell of the machine.
func (m *machine) shellCommand(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(m.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup",
		"--root", "--wd", "--", "/bin/sh", "-c", line)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	return cmd
}

// shellResult is the output and exit code of a command.
type shellResult struct {
	out, stderr string
	code        int
}

func (m *machine) runShell(t *testing.T, line string) shellResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	defer cancel()
	cmd := m.shellCommand(ctx, line)
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = cmd.Run() // the exit code reports it
	return shellResult{out.String(), talk.String(), cmd.ProcessState.ExitCode()}
}

// fileSums returns the checksums of all files on the machine's disk, except the ones that edgecore changes at run time.
func (m *machine) fileSums(t *testing.T) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, dir := range []string{"etc", "lib"} {
		err := filepath.WalkDir(filepath.Join(m.dir, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(m.dir, path)
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			switch {
			case d.IsDir() && strings.HasPrefix(name, "lib/frond/") && name != "lib/frond/identity":
				return fs.SkipDir // edgecore writes there all the time
			case d.Type()&fs.ModeSymlink != 0:
				to, err := os.Readlink(path)
				sums[name] = to
				return err
			case !d.Type().IsRegular(), strings.HasPrefix(name, "lib/frond/") && filepath.Dir(name) != "lib/frond/identity",
				name == "lib/frond/identity/clock.json": // what edgecore keeps, and writes when it likes
				return nil
			}
			data, err := os.ReadFile(path)
			sums[name] = fmt.Sprintf("%s %s %x", info.Mode(), info.ModTime(), sha256.Sum256(data))
			return err
		})
		kit.Must(t, err)
	}
	return sums
}

// processLines returns the command lines of the machine's processes.
func (m *machine) processLines(t *testing.T) string {
	t.Helper()
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", m.pid))
	kit.Must(t, err)
	processes, err := filepath.Glob("/proc/[0-9]*")
	kit.Must(t, err)
	var lines []string
	for _, process := range processes {
		if space, err := os.Readlink(process + "/ns/pid"); err != nil || space != own {
			continue // of another machine, or gone
		}
		if line, err := os.ReadFile(process + "/cmdline"); err == nil {
			lines = append(lines, string(bytes.ReplaceAll(line, []byte{0}, []byte(" "))))
		}
	}
	return strings.Join(lines, "\n")
}
