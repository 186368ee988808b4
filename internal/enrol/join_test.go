package enrol_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/internal/enrol"
	"github.com/frond-edge/frond/leaf/leaftest"
)

func (c *cloud) config(dir string) enrol.Config {
	return enrol.Config{Node: node, Dir: dir, Hub: []string{"tls://" + c.door.Addr()}, Token: token, CAHashes: []string{c.ca.Hash()}}
}

func join(t *testing.T, cfg enrol.Config) (enrol.Record, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return enrol.Join(ctx, cfg, zaptest.NewLogger(t))
}

// A machine joins through the one port, its secrets are for root alone, and a second time changes nothing.
func TestJoin(t *testing.T) {
	for name, tt := range map[string]func(c *cloud, cfg *enrol.Config){
		"tls":   func(*cloud, *enrol.Config) {},
		"wss":   func(c *cloud, cfg *enrol.Config) { cfg.Hub = []string{"wss://" + c.door.WebSocketAddr()} },
		"proxy": func(c *cloud, cfg *enrol.Config) { cfg.Proxy = leaftest.NewHTTPProxy(c.t).Find },
		"token file": func(c *cloud, cfg *enrol.Config) {
			cfg.Token, cfg.TokenFile = "", filepath.Join(c.t.TempDir(), "token")
			must(c.t, os.WriteFile(cfg.TokenFile, []byte(token+"\n"), 0o600))
		},
		// Its clock has run on without it, or begins in 1970.
		"clock 10 years behind": func(_ *cloud, cfg *enrol.Config) { cfg.Wall = shifted(-10) },
		"clock at its beginning": func(_ *cloud, cfg *enrol.Config) {
			cfg.Wall = func() time.Time { return time.Unix(100, 0) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			dir := filepath.Join(t.TempDir(), "identity")
			cfg := c.config(dir)
			tt(c, &cfg)
			first, err := join(t, cfg)
			must(t, err)
			if first.Key != read(c, &c.key) || read(c, &c.enrolled) != 1 {
				t.Errorf("record %+v, the cloud has %s, %d times", first, read(c, &c.key), read(c, &c.enrolled))
			}
			second, err := join(t, cfg)
			must(t, err)
			if diff := cmp.Diff(first, second); diff != "" {
				t.Errorf("a second time (-first +second):\n%s", diff)
			}
			private(t, dir)
			if off := time.Until(floor(t, dir)).Abs(); off > time.Hour {
				t.Errorf("the known time on disk is %s", floor(t, dir))
			}
			for file, want := range map[string]string{"hub-ca.crt": c.hubCA, "cluster-ca.crt": c.cluster} {
				if data, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(data) != want {
					t.Errorf("%s: %v, %q", file, err, data)
				}
			}
		})
	}
}

// A cloud whose clock is years ahead, and that sends a CA which is not the hub's, keeps no gateway out.
func TestAWrongAnswerKeepsNobodyOut(t *testing.T) {
	c := newCloud(t)
	c.set(func() { c.ahead, c.hubCA = 5*365*24*time.Hour, string(leaftest.NewCA(t).PEM()) })
	cfg := c.config(filepath.Join(t.TempDir(), "identity"))
	_, err := join(t, cfg)
	must(t, err)
	if data, err := os.ReadFile(filepath.Join(cfg.Dir, "hub-ca.crt")); err != nil || string(data) != string(c.ca.PEM()) {
		t.Errorf("the hub's CA is %q, %v", data, err)
	}
	g := run(t, cfg)
	within(t, "a link", func() bool { return g.leaf.Link().Up })
	if d := time.Until(g.keeper.Now()); d > time.Hour || d < -time.Hour {
		t.Errorf("it takes the time to be %s", g.keeper.Now())
	}
}

func shifted(years int) func() time.Time {
	return func() time.Time { return time.Now().AddDate(years, 0, 0) }
}

// private checks the modes of all files.
func private(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("%s has mode %s", dir, info.Mode())
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		must(t, err)
		if info.IsDir() || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
	}
}

// recorder is a TLS server of another CA that writes down all it gets, on the wire and inside.
type recorder struct {
	addr string
	mu   sync.Mutex
	wire bytes.Buffer // guarded by mu
	said bytes.Buffer // guarded by mu
	seen int          // guarded by mu
}

type tapped struct {
	net.Conn
	to *recorder
}

func (c tapped) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	c.to.wire.Write(p[:n])
	return n, err
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	cert := leaftest.NewCA(t).Serving(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // ends with the test
	must(t, err)
	r := &recorder{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				conn := tls.Server(tapped{raw, r}, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}})
				data, _ := io.ReadAll(io.LimitReader(conn, 1<<16)) // an alert, mostly
				_ = conn.Close()
				r.mu.Lock()
				defer r.mu.Unlock()
				r.said.Write(data)
				r.seen++
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return r
}

// Somebody else answers in the hub's place: the person is told, and not one byte was said to them, nor of the token.
func TestNothingIsSaidToAnotherCA(t *testing.T) {
	c, r := newCloud(t), newRecorder(t)
	cfg := c.config(filepath.Join(t.TempDir(), "identity"))
	cfg.Hub = []string{"tls://" + r.addr}
	_, err := join(t, cfg)
	if wrong, ok := errors.AsType[*enrol.CAError](err); !ok || len(wrong.Seen) != 1 || !strings.Contains(err.Error(), "Nothing was sent to it") {
		t.Fatalf("join says %v", err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for r.connections() == 0 && time.Now().Before(deadline) {
		<-time.After(10 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == 0 || r.said.Len() > 0 || bytes.Contains(r.wire.Bytes(), []byte("abcdef")) || bytes.Contains(r.wire.Bytes(), []byte("0123456789")) {
		t.Errorf("%d connections; it heard %q", r.seen, r.said.String())
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, "hub-ca.crt")); err == nil {
		t.Error("its CA was kept")
	}
}

func (r *recorder) connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// What a person has to do is said: wrong hash, wrong token, a name that is taken here, a clock that is ahead.
func TestJoinSaysWhy(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *cloud, cfg *enrol.Config)
		want   string
	}{
		"wrong hash": {func(_ *cloud, cfg *enrol.Config) {
			cfg.CAHashes = []string{"sha256:" + strings.Repeat("ab", 32)}
		}, "Compare the hash with the one"},
		"wrong token":          {func(_ *cloud, cfg *enrol.Config) { cfg.Token = "abcdef.wrong" }, "frond token create --node edge-1"},
		"clock 10 years ahead": {func(_ *cloud, cfg *enrol.Config) { cfg.Wall = shifted(10) }, "set the clock"},
		"hub's certificate is old": {func(c *cloud, _ *enrol.Config) {
			c.set(func() { c.cert = c.ca.Serving(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)) })
		}, "renew the hub's certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			cfg := c.config(filepath.Join(t.TempDir(), "identity"))
			tt.change(c, &cfg)
			if _, err := join(t, cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("join says %v, want %q", err, tt.want)
			}
			if n := read(c, &c.enrolled); n != 0 {
				t.Errorf("%d uses of the token", n)
			}
		})
	}
	c := newCloud(t)
	cfg := c.config(filepath.Join(t.TempDir(), "identity"))
	_, err := join(t, cfg)
	must(t, err)
	cfg.Node = "edge-2"
	if _, err := join(t, cfg); !errors.Is(err, enrol.ErrOtherNode) {
		t.Errorf("another name: %v", err)
	}
}
