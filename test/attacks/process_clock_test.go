package attacks_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// processClock replaces the clock of one child process. No namespace holds CLOCK_REALTIME, and a machine has only one. But a Go program
// reads it neither by a system call nor through libc: it calls a function of the vDSO, pages that the kernel maps into each process
// separately. Before the process runs its first instruction, that function is replaced by one that calls the kernel
// and adds some seconds to CLOCK_REALTIME. So the whole program, its libraries included, has that clock, and the
// monotonic clock is correct, as on a machine whose clock is set wrong.
type processClock struct {
	pid int
	at  int64 // address of the seconds in its memory
}

// clockCode is __vdso_clock_gettime(edi: clock, rsi: *timespec). The seconds follow it, aligned.
var clockCode = []byte{
	0xb8, 0xe4, 0x00, 0x00, 0x00, //                   mov  eax, 228 (clock_gettime)
	0x0f, 0x05, //                                     syscall
	0x85, 0xff, //                                     test edi, edi (CLOCK_REALTIME is 0)
	0x75, 0x0a, //                                     jnz  ret
	0x48, 0x8b, 0x0d, 0x06, 0x00, 0x00, 0x00, //       mov  rcx, [rip+6]: the seconds
	0x48, 0x01, 0x0e, //                               add  [rsi], rcx
	0xc3, //                                           ret
	0x90, 0x90,
}

// newProcessClock replaces the function in a process that is stopped before its first instruction.
func newProcessClock(pid int) (*processClock, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var from, to int64
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return nil, err
			}
		}
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = memory.Close() }() // nothing is kept back
	image := make([]byte, to-from)
	if _, err := memory.ReadAt(image, from); err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	vdso, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := vdso.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	for _, s := range symbols {
		const seconds = 8
		if size := len(clockCode) + seconds; s.Name != "__vdso_clock_gettime" || s.Size < uint64(size) || s.Value%seconds != 0 {
			continue
		}
		begin := from + int64(s.Value)
		_, err := memory.WriteAt(append(bytes.Clone(clockCode), make([]byte, seconds)...), begin)
		return &processClock{pid: pid, at: begin + int64(len(clockCode))}, err
	}
	return nil, fmt.Errorf("no function to replace in %d bytes of vDSO", len(image))
}

// set sets the offset of the clock to the machine's.
func (w *processClock) set(ahead time.Duration) error {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", w.pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = memory.Close() }() // nothing is kept back
	_, err = memory.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), w.at)
	return err
}

// bootWithClock starts a stopped gateway with a clock of its own. It is killed when the test ends.
func bootWithClock(t *testing.T, node string, ahead time.Duration) *processClock {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64: the function that tells the time is replaced by machine code")
	}
	ours := fmt.Sprintf("/proc/%d/", shared.PID(victim))
	program, err := os.Readlink(ours + "exe")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(shared.Dir(), "logs", node+".log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "--config", filepath.Join(shared.Dir(), node, "edgecore.yaml"))
	cmd.Dir, cmd.Stdout, cmd.Stderr = shared.Dir(), log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // ptrace belongs to a thread, whose end would also end the child
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // or it has ended
		_ = cmd.Wait()
		_ = log.Close()
	})
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, 0, nil); err != nil || !status.Stopped() {
		t.Fatalf("%s is not stopped at its start: %v, %v", node, status, err)
	}
	clock, err := newProcessClock(cmd.Process.Pid)
	if err != nil {
		t.Skipf("this kernel gives no process a clock of its own: %v", err)
	}
	if err := errors.Join(clock.set(ahead), syscall.PtraceDetach(cmd.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	return clock
}
