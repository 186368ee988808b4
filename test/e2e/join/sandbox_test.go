package join_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/frond-edge/frond/test/kit"
)

// box is the view of a process: this machine's files, with bound files over them, and a network namespace. Writes
// outside of bound folders are discarded.
type box struct {
	name, netns string
	// dir is a working folder of the box.
	dir string
	// binds maps paths in the box to files and folders of this machine.
	binds map[string]string
	// user is "UID:GID"; "" is root. readOnly forbids writes outside of bound folders.
	user     string
	readOnly bool
	// init gives the box a process namespace of its own; prepare runs before its first process.
	init    bool
	prepare string
	env     []string
}

// setupScript makes the box in new namespaces and enters it. The shell that runs it becomes the process in the box.
func (b box) setupScript() string {
	var s strings.Builder
	root := filepath.Join(b.dir, "root")
	fmt.Fprintf(&s, "set -e\nroot=%s\nmkdir -p $root %s/rw\nhostname %s\n", root, b.dir, b.name)
	fmt.Fprintf(&s, `mount -t tmpfs tmpfs %[1]s/rw
mkdir %[1]s/rw/up %[1]s/rw/work
mount -t overlay overlay -o lowerdir=/,upperdir=%[1]s/rw/up,workdir=%[1]s/rw/work $root
mount -t sysfs sysfs $root/sys
mount --rbind /dev $root/dev
mount -t tmpfs tmpfs $root/run
`, b.dir)
	if b.init {
		s.WriteString("mount -t proc proc $root/proc\n")
	} else {
		s.WriteString("mount --rbind /proc $root/proc\n")
	}
	for _, at := range slices.Sorted(maps.Keys(b.binds)) {
		from := b.binds[at]
		fmt.Fprintf(&s, "if [ -d %[1]s ]; then mkdir -p $root%[2]s; else mkdir -p $root%[3]s; : >> $root%[2]s; fi\nmount --bind %[1]s $root%[2]s\n",
			from, at, filepath.Dir(at))
	}
	s.WriteString(b.prepare)
	if b.readOnly {
		s.WriteString("mount -o remount,bind,ro $root\n")
	}
	if b.user != "" {
		fmt.Fprintf(&s, "exec chroot --userspec=%s --groups= $root \"$@\"\n", b.user)
	} else {
		s.WriteString("exec chroot $root \"$@\"\n")
	}
	return s.String()
}

// process is a process that the test has started.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	// grace is the time between SIGTERM and SIGKILL; a machine has none.
	grace time.Duration
}

// podGrace is Kubernetes' default grace period of a pod.
const podGrace = 30 * time.Second

// startProcess runs a program in the box until the test ends, or stop is called.
func (b box) startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{log: filepath.Join(b.dir, "log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	kit.Must(t, err)
	enter := []string{"--net=/run/netns/" + b.netns, "--", "unshare", "--mount", "--propagation", "private", "--uts"}
	if p.grace = podGrace; b.init {
		p.grace = 0
		enter = append(enter, "--pid", "--fork", "--kill-child", "--ipc", "--cgroup")
	}
	enter = append(enter, "--", "sh", "-c", b.setupScript(), "sh")
	p.cmd = exec.Command("nsenter", append(enter, args...)...) //nolint:noctx // stop ends it
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}, b.env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	kit.Must(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // the log shows how it ended
		_ = log.Close()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.stop(t)
		if t.Failed() {
			t.Logf("%s: …%s", b.name, logTail(p.log))
		}
	})
	return p
}

// stop sends SIGTERM to the process, and kills it if it does not end. A machine is killed at once, as by a power cut.
func (p *process) stop(t *testing.T) {
	t.Helper()
	if p.grace > 0 {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may be gone
		limit := time.NewTimer(p.grace)
		defer limit.Stop()
		select {
		case <-p.done:
			return
		case <-limit.C:
			t.Errorf("it did not end within %s: %s", p.grace, logTail(p.log))
		}
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) checkAlive() error {
	select {
	case <-p.done:
		return errors.New("it has ended: " + logTail(p.log))
	default:
		return nil
	}
}

func logTail(file string) string {
	const most = 3000
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-most):])
}
