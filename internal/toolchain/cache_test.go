package toolchain_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/internal/toolchain/cache"
	"github.com/frond-edge/frond/test/kit"
)

// holdLockEnv makes the test binary a process that takes a lock and holds it.
const holdLockEnv = "TOOLCHAIN_TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	if dir := os.Getenv(holdLockEnv); dir != "" {
		//nolint:forbidigo // the main function of a child process
		if _, err := (cache.Cache{Dir: dir}).Lock(context.Background(), "kube", io.Discard); err != nil {
			panic(err)
		}
		fmt.Println("locked")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes stdin or kills the process
		os.Exit(0)
	}
	goleak.VerifyTestMain(kit.AwaitGoroutines(m))
}

func TestCache_LockWaits(t *testing.T) {
	c := cache.Cache{Dir: t.TempDir()}
	unlock, err := c.Lock(t.Context(), "kube", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	other, err := c.Lock(t.Context(), "node", io.Discard)
	if err != nil {
		t.Fatalf("another name: %v", err)
	}
	other()

	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the user has had enough")
	told := &textTrigger{want: "another process is building kube", seen: func() { cancel(why) }}
	if _, err := c.Lock(ctx, "kube", told); !errors.Is(err, why) {
		t.Errorf("cancelled wait: got %v, want %v", err, why)
	}

	told = &textTrigger{want: "waiting", seen: unlock}
	again, err := c.Lock(t.Context(), "kube", told)
	if err != nil {
		t.Fatalf("after the first has let go: %v", err)
	}
	again()
}

// textTrigger is a writer that calls seen when the wanted text is written.
type textTrigger struct {
	want string
	seen func()
	once sync.Once
}

func (w *textTrigger) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.want) {
		w.once.Do(w.seen)
	}
	return len(p), nil
}

func TestCache_LockOfKilledProcessIsFree(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), holdLockEnv+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the other process said %q, %v", line, err)
	}
	waited := false
	out := &textTrigger{want: "waiting", seen: func() { waited = true; _ = cmd.Process.Kill() }}
	unlock, err := (cache.Cache{Dir: dir}).Lock(t.Context(), "kube", out)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if !waited {
		t.Error("the lock came before its holder was killed")
		_ = cmd.Process.Kill()
	}
	_ = cmd.Wait()
}

func TestCache_InstallIsAllOrNothing(t *testing.T) {
	c := cache.Cache{Dir: t.TempDir()}
	left, err := c.MakeTemp("kube")
	if err != nil {
		t.Fatal(err)
	}
	writeTree(t, left, map[string]string{"kube": "half a program"})
	entry := c.EntryPath("kube", "inputs")
	if c.TouchEntry(entry) {
		t.Fatal("an entry is there before it was built")
	}
	temp, err := c.MakeTemp("kube")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what an interrupted run left is still there: %v", err)
	}
	writeTree(t, temp, map[string]string{"kube": "a program"})
	if err := os.Symlink("kube", filepath.Join(temp, "etcd")); err != nil {
		t.Fatal(err)
	}
	writeTree(t, entry, map[string]string{"junk": "somebody's accident"})
	if c.TouchEntry(entry) {
		t.Error("a folder without a recipe passed for an entry")
	}
	if err := c.InstallEntry(temp, entry, "inputs"); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(entry, "etcd")); err != nil || string(content) != "a program" || !c.TouchEntry(entry) {
		t.Errorf("installed: %q, %v", content, err)
	}
}

func TestCache_PruneKeepsTheLastUsed(t *testing.T) {
	c := cache.Cache{Dir: t.TempDir()}
	var entries []string
	for i := range 5 {
		temp, err := c.MakeTemp("kube")
		if err != nil {
			t.Fatal(err)
		}
		entry := c.EntryPath("kube", fmt.Sprint(i))
		if err := c.InstallEntry(temp, entry, "x"); err != nil {
			t.Fatal(err)
		}
		used := time.Now().Add(time.Duration(i-10) * 24 * time.Hour)
		if err := os.Chtimes(entry, used, used); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry)
	}
	mine := filepath.Join(filepath.Dir(entries[0]), "kube-notes")
	writeTree(t, mine, map[string]string{"x": "not an entry"})
	if !c.TouchEntry(entries[1]) { // now the most recently used
		t.Fatal("entry 1 is missing")
	}
	c.Prune("kube", 3, entries[0])
	for i, want := range []bool{true, true, false, false, true} {
		if _, err := os.Stat(entries[i]); (err == nil) != want {
			t.Errorf("entry %d: there is %v, want %v", i, err == nil, want)
		}
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("a folder that is no entry is gone: %v", err)
	}
}
