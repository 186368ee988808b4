package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/test/kit"
)

// threadsEnv has a copy of this program start that many threads and end.
const threadsEnv = "DAEMON_TEST_THREADS"

func TestMain(m *testing.M) {
	if n, err := strconv.Atoi(os.Getenv(threadsEnv)); err == nil {
		runThreads(n)
		os.Exit(0)
	}
	goleak.VerifyTestMain(kit.AwaitGoroutines(m))
}

func runThreads(n int) {
	var started sync.WaitGroup
	for range n {
		started.Add(1)
		go func() {
			runtime.LockOSThread()
			started.Done()
			select {}
		}()
	}
	started.Wait()
}

// startScript runs a shell script and kills it at the end of the test.
func startScript(t *testing.T, script string) (id daemon.Identity, log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "logs", "x.log")
	id, err := daemon.Start(daemon.Command{Path: "/bin/sh", Args: []string{"-c", script}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = id.Signal(syscall.SIGKILL) })
	return id, log
}

// TestIdentity_DeadStaysDead: threads of a process end one after the other, and what counts them must not take it for dead early.
func TestIdentity_DeadStaysDead(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		env := []string{threadsEnv + "=200", "GORACE=atexit_sleep_ms=0"} // a program with the race detector sleeps before it ends
		id, err := daemon.Start(daemon.Command{Path: program, Env: env, Log: filepath.Join(t.TempDir(), "x.log")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = id.Signal(syscall.SIGKILL) })
		for id.Alive() {
			runtime.Gosched()
		}
		for range 200 {
			if id.Alive() {
				t.Fatal("alive again")
			}
		}
	}
}

func TestIdentity_StopKillsAfterGrace(t *testing.T) {
	for name, script := range map[string]string{
		"obeys": "exec sleep 1000",
		"deaf":  "trap '' TERM; echo deaf; exec sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			id, log := startScript(t, script)
			if name == "deaf" {
				awaitText(t, log, "deaf")
			}
			if !id.Alive() {
				t.Fatal("not alive after start")
			}
			if err := id.Stop(t.Context(), 50*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			if id.Alive() {
				t.Error("alive after stop")
			}
			if err := id.Stop(t.Context(), time.Second); err != nil {
				t.Errorf("a second stop: %v", err)
			}
			if err := id.Signal(syscall.SIGTERM); !errors.Is(err, daemon.ErrGone) {
				t.Errorf("signal after stop: %v", err)
			}
		})
	}
}

func TestIdentity_RecycledPIDIsNotAlive(t *testing.T) {
	id, _ := startScript(t, "exec sleep 1000")
	for name, other := range map[string]daemon.Identity{
		"other start": {PID: id.PID, Ticks: id.Ticks + 1, Boot: id.Boot},
		"other boot":  {PID: id.PID, Ticks: id.Ticks, Boot: "another"},
		"zero":        {},
	} {
		if other.Alive() {
			t.Errorf("%s: passes for alive", name)
		}
		if err := other.Signal(syscall.SIGKILL); !errors.Is(err, daemon.ErrGone) {
			t.Errorf("%s: signal: %v", name, err)
		}
	}
	if !id.Alive() {
		t.Error("the wrong process was killed")
	}
	again, err := daemon.Identify(id.PID)
	if err != nil || !again.Alive() || again.Ticks != id.Ticks {
		t.Errorf("identify: %+v, %v", again, err)
	}
}

func TestStart_OwnSession(t *testing.T) {
	id, _ := startScript(t, "exec sleep 1000")
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(id.PID), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if session := fields[3]; session != strconv.Itoa(id.PID) {
		t.Errorf("session %s, want %d", session, id.PID)
	}
	if id.RSS() == 0 {
		t.Error("no memory counted")
	}
}

func TestStart_AppendsToLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "x.log")
	for _, word := range []string{"one", "two"} {
		id, err := daemon.Start(daemon.Command{
			Path: "/bin/sh", Args: []string{"-c", "echo $WORD; echo err >&2"}, Log: log,
			Env: []string{"WORD=" + word},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := id.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(log)
	if err != nil || string(data) != "one\nerr\ntwo\nerr\n" {
		t.Errorf("log %q, %v", data, err)
	}
}

func TestStart_MissingProgramFails(t *testing.T) {
	if _, err := daemon.Start(daemon.Command{Path: "/no/such/program", Log: filepath.Join(t.TempDir(), "x.log")}); err == nil {
		t.Error("no error")
	}
}

func awaitText(t *testing.T, path, text string) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("%q in %s", text, path), func() bool {
		data, _ := os.ReadFile(path)
		return strings.Contains(string(data), text)
	})
}
