package store_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
)

// crashDir names the store folder. If it is set, the test binary is the process to be killed.
const crashDir = "FROND_STORE_CRASH_DIR"

// The stream that the child applies is a pure function of the sequence, so the parent knows the expected state.
const crashKeys = 40

func crashMessage(seq uint64) wire.Message {
	name := fmt.Sprint("k", seq*7%crashKeys)
	life := seq / crashKeys / 5 // an object lives for some rounds, then another one has its name
	uid := fmt.Sprint("u", life)
	if seq/crashKeys%5 == 4 {
		return deleteMessage(seq, name, uid)
	}
	return applyMessage(seq, name, uid, strconv.FormatUint(seq, 10)+" "+strings.Repeat("x", int(seq%3000)))
}

// crashChild opens the store, applies messages from its cursor on, in batches of many sizes, and prints the acked writes on stdout.
func crashChild(dir string) int {
	if err := crashRun(dir); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

func crashRun(dir string) error {
	ctx := context.Background() //nolint:forbidigo // the main function of a child process
	server, err := leaf.New(leaf.Config{Node: "edge-1", Dir: dir}, zap.NewNop())
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	select {
	case <-server.Ready():
	case err := <-ended:
		return fmt.Errorf("leaf ended: %w", err)
	}
	nc, err := server.Conn("crash")
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	s, err := store.Open(ctx, js, store.Config{}, zap.NewNop())
	if err != nil {
		return err
	}
	if s.Cursor().StreamEpoch == "" {
		if err := s.Replace(ctx, nil, "s1", 0); err != nil {
			return err
		}
	}
	fmt.Println("open", s.Cursor().Sequence)
	for {
		from := s.Cursor().Sequence
		n := 1 + rand.Uint64N(3) // one by one
		if rand.Uint64N(2) == 0 {
			n = 1 + rand.Uint64N(600) // atomic batches
		}
		var batch []wire.Message
		for seq := from + 1; seq <= from+n; seq++ {
			batch = append(batch, crashMessage(seq))
		}
		if err := s.Apply(ctx, batch, from+n); err != nil {
			return err
		}
		local := wire.Key{Resource: "pods", Namespace: "default", Name: "local"}
		if _, err := s.Put(ctx, local, objectJSON("l", strconv.FormatUint(from+n, 10)), nil); err != nil {
			return err
		}
		fmt.Println("acked", from+n)
	}
}

// A kill -9 at any moment of Apply keeps the acked writes and leaves no cursor ahead of its objects.
func TestStore_SurvivesKill(t *testing.T) {
	rounds := 12
	if testing.Short() {
		rounds = 3
	}
	dir := t.TempDir()
	own := uint64(0) // the newest acked local write
	for round := range rounds {
		acked, put := killChild(t, dir, time.Duration(20+rand.IntN(400))*time.Millisecond, "")
		own = max(own, put)
		checkKilled(t, dir, fmt.Sprint("round ", round), acked, own)
	}
}

// The same with a kill at each point of a commit, of which the store passes some several times before.
func TestStore_SurvivesKillAtEachPoint(t *testing.T) {
	dir := t.TempDir()
	own := uint64(0)
	for _, count := range []int{1, 2, 3, 10, 77} {
		for _, point := range []string{"save.begun", "save.sent", "save.batched", "save.synced"} {
			at := fmt.Sprint(point, ":", count)
			acked, put := killChild(t, dir, time.Minute, at)
			own = max(own, put)
			checkKilled(t, dir, at, acked, own)
		}
	}
}

// checkKilled opens the store of a killed child, whose newest acked writes are given.
func checkKilled(t *testing.T, dir, when string, acked, own uint64) {
	t.Helper()
	n := openNode(t, dir, store.Config{})
	cursor := n.Cursor()
	t.Logf("%s: acked %d, cursor %d, %d objects", when, acked, cursor.Sequence, len(onlyEntries(n.All())))
	if acked > 0 && (cursor.StreamEpoch != "s1" || cursor.Sequence < acked) {
		t.Fatalf("%s: cursor %+v after %d was acked", when, cursor, acked)
	}
	checkCrash(t, n, own)
	n.js.Conn().Close()
	n.leaf.Stop()
}

func onlyEntries(list []store.Entry, _ uint64) []store.Entry { return list }

// killChild runs a child on dir and kills it some time after it opened its store; with a point of package failpoint the child
// kills itself there before. It returns the last sequence that it acked, and the last one whose local write it acked.
func killChild(t *testing.T, dir string, after time.Duration, point string) (acked, own uint64) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashDir+"="+dir, failpoint.Env+"="+point)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var timer *time.Timer
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		word, number, _ := strings.Cut(lines.Text(), " ")
		seq, err := strconv.ParseUint(number, 10, 64)
		must(t, err)
		acked = seq
		if word == "acked" {
			own = seq
		}
		if word == "open" && timer == nil {
			timer = time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
		}
	}
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("child was not killed: %v", err)
	}
	return acked, own
}

// checkCrash compares the store with the stream up to the store's cursor; objects may be ahead of it, never behind.
func checkCrash(t *testing.T, n *node, own uint64) {
	t.Helper()
	cursor := n.Cursor().Sequence
	last := map[string]wire.Message{}
	for seq := max(cursor, 20*crashKeys) - 20*crashKeys + 1; seq <= cursor; seq++ {
		m := crashMessage(seq)
		last[m.Key.Name] = m
	}
	for name, m := range last {
		e, err := n.Get(m.Key)
		switch {
		case err == nil && e.Sequence > cursor:
			m = crashMessage(e.Sequence) // from a batch that was not acked
			fallthrough
		case err == nil && m.Op == wire.Apply:
			if e.Sequence != m.Sequence || string(e.Object) != string(m.Object) || e.UID != m.UID {
				t.Errorf("%s: holds message %d, want %d", name, e.Sequence, m.Sequence)
			}
		case err == nil:
			t.Errorf("%s: back from the dead as message %d; deleted by %d", name, e.Sequence, m.Sequence)
		case m.Op == wire.Apply && !deletedAhead(name, cursor):
			t.Errorf("%s: lost message %d (cursor %d): %v", name, m.Sequence, cursor, err)
		}
	}
	if own == 0 {
		return
	}
	e, err := n.Get(wire.Key{Resource: "pods", Namespace: "default", Name: "local"})
	if err != nil {
		t.Errorf("own write lost: %v", err)
		return
	}
	var seq uint64
	if _, err := fmt.Sscanf(string(e.Object), `{"metadata":{"name":"x","uid":"l"},"data":"%d"`, &seq); err != nil || seq < own {
		t.Errorf("own write is %s, want at least %d (%v)", e.Object, own, err)
	}
}

// deletedAhead reports whether one of the next messages, possibly from a batch that was not acked, deletes the object.
func deletedAhead(name string, cursor uint64) bool {
	for seq := cursor + 1; seq <= cursor+600; seq++ {
		if m := crashMessage(seq); m.Key.Name == name && m.Op == wire.Delete {
			return true
		}
	}
	return false
}
