package leaf_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

func TestServer_JetStreamWorksWithoutLinkAndAfterRestart(t *testing.T) {
	dir := t.TempDir()
	first := leaftest.StartLeaf(t, leaf.Config{Dir: dir, Node: "gw.17"})
	nc := first.Client()
	js := newJetStream(t, nc)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	info, err := js.AccountInfo(t.Context())
	if err != nil || info.Domain != "gw_17" {
		t.Fatalf("domain %q, %v; want gw_17", info.Domain, err)
	}
	if !strings.HasPrefix(nc.NewInbox(), "_INBOX.gw_17.") {
		t.Errorf("inbox %s does not start with the node's prefix", nc.NewInbox())
	}
	nc.Close()
	first.Stop()
	if _, err := first.Conn("late"); !errors.Is(err, leaf.ErrNotRunning) {
		t.Errorf("Conn after the end: %v, want ErrNotRunning", err)
	}

	second := leaftest.StartLeaf(t, leaf.Config{Dir: dir, Node: "gw.17"})
	s, err := newJetStream(t, second.Client()).Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.GetMsg(t.Context(), 1)
	if err != nil || string(m.Data) != "kept" {
		t.Errorf("message %v, %v; want the one acked before", m, err)
	}
}

func TestServer_ListensOnNoPort(t *testing.T) {
	before := listeningSockets(t)
	l := leaftest.StartLeaf(t, leaf.Config{})
	l.Client()
	for socket := range listeningSockets(t) {
		if !before[socket] {
			t.Errorf("leaf listens: %s", socket)
		}
	}
}

// listeningSockets returns this process's listening TCP sockets.
func listeningSockets(t *testing.T) map[string]bool {
	t.Helper()
	mine := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc here")
	}
	for _, fd := range fds {
		if link, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil {
			if inode, ok := strings.CutPrefix(link, "socket:["); ok {
				mine[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	found := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile("/proc/self/net/" + table)
		if err != nil {
			continue
		}
		for line := range strings.SplitSeq(string(data), "\n") {
			f := strings.Fields(line)
			const listen = "0A"
			if len(f) > 9 && f[3] == listen && mine[f[9]] {
				found[table+" "+f[1]] = true
			}
		}
	}
	return found
}

func TestServer_StartReportsBadStoreFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := leaf.New(leaf.Config{Node: "n", Dir: file}, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("a store that is a file is no error")
	}
}

// A fault of the link's files does not affect the store. The server reports it, and links when it is repaired.
func TestServer_MissingLinkFilesAreReportedAsProblem(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		cfg  leaf.Config
		want string
	}{
		"no CA":     {leaf.Config{CAFile: filepath.Join(dir, "none")}, "read the hub's CA"},
		"empty CA":  {leaf.Config{CAFile: broken}, "holds no certificate"},
		"bad proxy": {leaf.Config{Proxy: func(*url.URL) (*url.URL, error) { return nil, errors.New("odd") }}, "find the proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.cfg.Hub = []string{"nats-leaf://127.0.0.1:1"}
			l := leaftest.StartLeaf(t, tt.cfg)
			eventually(t, tt.want, func() error {
				if err := l.Problem(); err == nil || !strings.Contains(err.Error(), tt.want) {
					return fmt.Errorf("problem: %w", err)
				}
				return nil
			})
		})
	}
}

func newJetStream(t *testing.T, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	kit.Until(t, what, 20*time.Second, 20*time.Millisecond, func(context.Context) error { return ok() })
}

func roundTrip(nc *nats.Conn) error {
	m, err := nc.Request("echo", []byte("x"), time.Second)
	if err != nil {
		return err
	}
	if string(m.Data) != "x" {
		return fmt.Errorf("answer %q", m.Data)
	}
	return nil
}
