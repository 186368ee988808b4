package e2e_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal opens a pseudo terminal of this machine.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() }) // the test has ended
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() }) // the same
	return master, slave
}

func resizeTerminal(t *testing.T, master *os.File, rows, columns uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		t.Fatal(err)
	}
}

// TestExec_Terminal types, resizes, and presses Ctrl-C.
func TestExec_Terminal(t *testing.T) {
	needContainers(t)
	t.Parallel()
	applyManifest(t, scriptPod("tty", "edge-2", "sleep 36000"))
	awaitRunning(t, "app=tty", 1)
	master, slave := openTerminal(t)
	resizeTerminal(t, master, 31, 91)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd := kubectlCommand(ctx, "exec", "-it", "tty", "--", "sh", "-c", "read word; echo the word is $word; while true; do stty size; sleep 1; done")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close() // only kubectl holds it now: the terminal ends with it
	lines := bufio.NewScanner(master)
	see := func(want string) {
		t.Helper()
		var seen []string
		for lines.Scan() {
			if seen = append(seen, lines.Text()); strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("no %q in %q, %v", want, seen, lines.Err())
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if _, err := io.WriteString(master, "pear\r"); err != nil {
		t.Fatal(err)
	}
	see("the word is pear")
	see("31 91")
	resizeTerminal(t, master, 44, 122)
	see("44 122")
	if _, err := io.WriteString(master, "\x03"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); exitCode(err) <= 0 || ctx.Err() != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
}
