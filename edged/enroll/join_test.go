package enroll_test

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

	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/edged/identitydir"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

func (c *fakeCloud) newConfig(dir string) enroll.Config {
	return enroll.Config{Node: testNode, Dir: dir, Hub: []string{"tls://" + c.door.Addr()}, Token: testToken, CAHashes: []string{c.ca.Hash()}}
}

func joinCloud(t *testing.T, cfg enroll.Config) (identitydir.Record, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return enroll.Join(ctx, cfg, zaptest.NewLogger(t))
}

// A machine joins through the one port, its secrets are readable by root alone, and a second Join changes nothing.
func TestJoin(t *testing.T) {
	for name, tt := range map[string]func(c *fakeCloud, cfg *enroll.Config){
		"tls":   func(*fakeCloud, *enroll.Config) {},
		"wss":   func(c *fakeCloud, cfg *enroll.Config) { cfg.Hub = []string{"wss://" + c.door.WebSocketAddr()} },
		"proxy": func(c *fakeCloud, cfg *enroll.Config) { cfg.Proxy = leaftest.NewHTTPProxy(c.t).Find },
		"token file": func(c *fakeCloud, cfg *enroll.Config) {
			cfg.Token, cfg.TokenFile = "", filepath.Join(c.t.TempDir(), "token")
			kit.Must(c.t, os.WriteFile(cfg.TokenFile, []byte(testToken+"\n"), 0o600))
		},
		// Its clock has run on without it, or starts in 1970.
		"clock 10 years behind": func(_ *fakeCloud, cfg *enroll.Config) { cfg.Wall = shiftedClock(-10) },
		"clock at its beginning": func(_ *fakeCloud, cfg *enroll.Config) {
			cfg.Wall = func() time.Time { return time.Unix(100, 0) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCloud(t)
			dir := filepath.Join(t.TempDir(), "identity")
			cfg := c.newConfig(dir)
			tt(c, &cfg)
			first, err := joinCloud(t, cfg)
			kit.Must(t, err)
			if first.Key != readLocked(c, &c.key) || readLocked(c, &c.enrolled) != 1 {
				t.Errorf("record %+v, the cloud has %s, %d times", first, readLocked(c, &c.key), readLocked(c, &c.enrolled))
			}
			second, err := joinCloud(t, cfg)
			kit.Must(t, err)
			if diff := cmp.Diff(first, second); diff != "" {
				t.Errorf("a second time (-first +second):\n%s", diff)
			}
			wantPrivate(t, dir)
			if off := time.Until(savedFloor(t, dir)).Abs(); off > time.Hour {
				t.Errorf("the known time on disk is %s", savedFloor(t, dir))
			}
			for file, want := range map[string]string{"hub-ca.crt": c.hubCA, "cluster-ca.crt": c.cluster} {
				if data, err := os.ReadFile(filepath.Join(dir, file)); err != nil || string(data) != want {
					t.Errorf("%s: %v, %q", file, err, data)
				}
			}
		})
	}
}

// A cloud whose clock is years ahead, and that sends a CA which is not the hub's, does not lock a gateway out.
func TestJoin_IgnoresWrongAnswer(t *testing.T) {
	c := newFakeCloud(t)
	c.update(func() { c.ahead, c.hubCA = 5*365*24*time.Hour, string(leaftest.NewCA(t).PEM()) })
	cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
	_, err := joinCloud(t, cfg)
	kit.Must(t, err)
	if data, err := os.ReadFile(filepath.Join(cfg.Dir, "hub-ca.crt")); err != nil || string(data) != string(c.ca.PEM()) {
		t.Errorf("the hub's CA is %q, %v", data, err)
	}
	g := runGateway(t, cfg)
	kit.Eventually(t, "a link", func() bool { return g.leaf.Link().Up })
	if d := time.Until(g.renewer.Now()); d > time.Hour || d < -time.Hour {
		t.Errorf("it takes the time to be %s", g.renewer.Now())
	}
}

func shiftedClock(years int) func() time.Time {
	return func() time.Time { return time.Now().AddDate(years, 0, 0) }
}

// wantPrivate checks the modes of all files.
func wantPrivate(t *testing.T, dir string) {
	t.Helper()
	info, err := os.Stat(dir)
	kit.Must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("%s has mode %s", dir, info.Mode())
	}
	entries, err := os.ReadDir(dir)
	kit.Must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		kit.Must(t, err)
		if info.IsDir() || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %s", e.Name(), info.Mode())
		}
	}
}

// recordingServer is a TLS server of another CA that records all input, on the wire and decrypted.
type recordingServer struct {
	addr       string
	mu         sync.Mutex
	wireBytes  bytes.Buffer // guarded by mu
	plainBytes bytes.Buffer // guarded by mu
	accepted   int          // guarded by mu
}

type tappedConn struct {
	net.Conn
	to *recordingServer
}

func (c tappedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.to.mu.Lock()
	defer c.to.mu.Unlock()
	c.to.wireBytes.Write(p[:n])
	return n, err
}

func newRecordingServer(t *testing.T) *recordingServer {
	t.Helper()
	cert := leaftest.NewCA(t).ServingCert(time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // ends with the test
	kit.Must(t, err)
	r := &recordingServer{addr: l.Addr().String()}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				conn := tls.Server(tappedConn{raw, r}, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}})
				data, _ := io.ReadAll(io.LimitReader(conn, 1<<16)) // mostly an alert
				_ = conn.Close()
				r.mu.Lock()
				defer r.mu.Unlock()
				r.plainBytes.Write(data)
				r.accepted++
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return r
}

// Another server answers in the hub's place: the operator gets an error, and not one byte was sent to that server, nor any
// part of the token.
func TestJoin_SendsNothingToOtherCA(t *testing.T) {
	c, r := newFakeCloud(t), newRecordingServer(t)
	cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
	cfg.Hub = []string{"tls://" + r.addr}
	_, err := joinCloud(t, cfg)
	if wrong, ok := errors.AsType[*hubca.CAError](err); !ok || len(wrong.Seen) != 1 || !strings.Contains(err.Error(), "Nothing was sent to it") {
		t.Fatalf("join says %v", err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for r.countConnections() == 0 && time.Now().Before(deadline) {
		<-time.After(10 * time.Millisecond)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.accepted == 0 || r.plainBytes.Len() > 0 || bytes.Contains(r.wireBytes.Bytes(), []byte("abcdef")) || bytes.Contains(r.wireBytes.Bytes(), []byte("0123456789")) {
		t.Errorf("%d connections; it heard %q", r.accepted, r.plainBytes.String())
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, "hub-ca.crt")); err == nil {
		t.Error("its CA was kept")
	}
}

func (r *recordingServer) countConnections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}

// The error names the necessary action: wrong hash, wrong token, a name that is taken here, a clock that is ahead.
func TestJoin_ExplainsRefusal(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(c *fakeCloud, cfg *enroll.Config)
		want   string
	}{
		"wrong hash": {func(_ *fakeCloud, cfg *enroll.Config) {
			cfg.CAHashes = []string{"sha256:" + strings.Repeat("ab", 32)}
		}, "Compare the hash with the one"},
		"wrong token":          {func(_ *fakeCloud, cfg *enroll.Config) { cfg.Token = "abcdef.wrong" }, "frond token create --node edge-1"},
		"clock 10 years ahead": {func(_ *fakeCloud, cfg *enroll.Config) { cfg.Wall = shiftedClock(10) }, "set the clock"},
		"hub's certificate is old": {func(c *fakeCloud, _ *enroll.Config) {
			c.update(func() { c.cert = c.ca.ServingCert(time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)) })
		}, "renew the hub's certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCloud(t)
			cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
			tt.change(c, &cfg)
			if _, err := joinCloud(t, cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("join says %v, want %q", err, tt.want)
			}
			if n := readLocked(c, &c.enrolled); n != 0 {
				t.Errorf("%d uses of the token", n)
			}
		})
	}
	c := newFakeCloud(t)
	cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
	_, err := joinCloud(t, cfg)
	kit.Must(t, err)
	cfg.Node = "edge-2"
	if _, err := joinCloud(t, cfg); !errors.Is(err, identitydir.ErrOtherNode) {
		t.Errorf("another name: %v", err)
	}
}
