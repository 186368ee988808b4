package enroll_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
)

// testGateway is a leaf with its Renewer, as in edgecore.
type testGateway struct {
	renewer *enroll.Renewer
	leaf    *leaf.Server
	stop    func()
}

func startGateway(ctx context.Context, cfg enroll.Config, dir string, log *zap.Logger) (*testGateway, error) {
	k, err := enroll.New(cfg, log)
	if err != nil {
		return nil, err
	}
	way := leaf.Config{Node: cfg.Node, Dir: dir, Reserve: -1, RedialMin: 100 * time.Millisecond, RedialMax: 500 * time.Millisecond}
	k.ConfigureLeaf(&way)
	l, err := leaf.New(way, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return l.Start(ctx) })
	g.Go(func() error {
		select {
		case <-l.Ready():
			return k.Start(ctx, l)
		case <-ctx.Done():
			return nil
		}
	})
	return &testGateway{k, l, func() {
		cancel()
		_ = g.Wait()
	}}, nil
}

func runGateway(t *testing.T, cfg enroll.Config) *testGateway {
	t.Helper()
	g, err := startGateway(context.WithoutCancel(t.Context()), cfg, t.TempDir(), zaptest.NewLogger(t))
	kit.Must(t, err)
	t.Cleanup(g.stop)
	return g
}

// reconnect ends the gateway's link and waits for its next one.
func (g *testGateway) reconnect(t *testing.T, c *fakeCloud) {
	t.Helper()
	before := g.leaf.Link().Reconnects
	c.door.CloseLinks()
	kit.Eventually(t, "another link", func() bool { l := g.leaf.Link(); return l.Up && l.Reconnects > before })
}

// A gateway with only a token enrols automatically, renews its key in time, repeatedly, and is accepted with the newest
// one. Its link stays, and the cloud gets the confirmation of the key. If the cloud has forgotten the owner of the link,
// the gateway ends it before the next renewal, and no answer is lost with it.
func TestRenewer_RenewsKeyInTime(t *testing.T) {
	for name, forgetful := range map[string]bool{"link carried over": false, "link forgotten": true} {
		t.Run(name, func(t *testing.T) { testRenewedInTime(t, forgetful) })
	}
}

func testRenewedInTime(t *testing.T, forgetful bool) {
	t.Helper()
	c := newFakeCloud(t)
	c.update(func() { c.life, c.forgetful = 6*time.Second, forgetful })
	cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
	g := runGateway(t, cfg)
	kit.Eventually(t, "enrolled", func() bool { return g.renewer.Record().Key != "" })
	kit.Eventually(t, "a renewal", func() bool { return readLocked(c, &c.changes) >= 2 })
	links := g.leaf.Link().Reconnects
	kit.Eventually(t, "another renewal", func() bool { return readLocked(c, &c.changes) >= 3 })
	if again := g.leaf.Link().Reconnects - links; again > 0 != forgetful {
		t.Errorf("%d links were created again", again)
	}
	if !forgetful {
		kit.Eventually(t, "the cloud hears that its answer came", func() bool { return readLocked(c, &c.confirmed) > 0 })
	}
	if n := readLocked(c, &c.enrolled); n != 1 {
		t.Errorf("the token was used %d times", n)
	}
	if n := readLocked(c, &c.lost); n != 0 {
		t.Errorf("%d answers were lost with their link", n)
	}
	shown := readLocked(c, &c.tokens)
	g.reconnect(t, c)
	kit.Eventually(t, "a link with the newest key", func() bool { return g.leaf.Link().Up && g.renewer.Record().Key == readLocked(c, &c.key) })
	if readLocked(c, &c.tokens) != shown {
		t.Error("an enrolled gateway has shown its token again")
	}
}

// The cloud knows only a key whose answer the gateway never got: the gateway presents it, also when it has expired, and
// recovers its identity.
func TestRenewer_ShowsNextKeyWhenOthersRefused(t *testing.T) {
	for name, life := range map[string]time.Duration{"good": time.Hour, "expired": -time.Minute} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCloud(t)
			cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
			_, err := joinCloud(t, cfg)
			kit.Must(t, err)
			pair, err := nkeys.CreateUser()
			kit.Must(t, err)
			seed, err := pair.Seed()
			kit.Must(t, err)
			next, err := pair.PublicKey()
			kit.Must(t, err)
			kit.Must(t, os.WriteFile(filepath.Join(cfg.Dir, "node.nk.next"), seed, 0o600))
			c.update(func() { c.key, c.previous, c.expires = next, "", time.Now().Add(life) })
			g := runGateway(t, cfg)
			kit.Eventually(t, "it is the next key", func() bool { return g.renewer.Record().Key == next })
			kit.Eventually(t, "its key is good", func() bool { return readLocked(c, &c.expires).After(time.Now()) })
			g.reconnect(t, c)
			if n := readLocked(c, &c.enrolled); n != 1 {
				t.Errorf("the token was used %d times", n)
			}
		})
	}
}

// A gateway that was offline until its key had expired recovers automatically, within the window; after that it reports the
// necessary action.
func TestRenewer_RenewsExpiredKey(t *testing.T) {
	for name, window := range map[string]time.Duration{"within the window": time.Hour, "after it": 0} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCloud(t)
			cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
			_, err := joinCloud(t, cfg)
			kit.Must(t, err)
			c.update(func() { c.expires, c.window = time.Now().Add(-time.Minute), window })
			g := runGateway(t, cfg)
			if window == 0 {
				kit.Eventually(t, "it has asked twice", func() bool { return readLocked(c, &c.refused) >= 2 })
				if readLocked(c, &c.expires).After(time.Now()) || readLocked(c, &c.changes) != 1 {
					t.Error("it was renewed")
				}
				kit.Eventually(t, "it says why", func() bool { return strings.Contains(g.renewer.Refused(), "make a token for it") })
				// The operator of the cloud extends the window: the gateway recovers without an action on it.
				c.update(func() { c.window = time.Hour })
			}
			kit.Eventually(t, "renewed", func() bool { return readLocked(c, &c.expires).After(time.Now()) && g.leaf.Link().Up })
			kit.Eventually(t, "it says no more that it is refused", func() bool { return g.renewer.Refused() == "" })
			if n := readLocked(c, &c.enrolled); n != 1 {
				t.Errorf("the token was used %d times", n)
			}
		})
	}
}

// A gateway is killed between any two steps of its enrolment and of a renewal. It continues from there; its token is used
// once, and it is never locked out.
func TestRenewer_SurvivesKillBetweenSteps(t *testing.T) {
	for _, point := range failpoint.Points()["enrolment"] {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			c := newFakeCloud(t)
			c.update(func() { c.life = 4 * time.Second })
			o := childTask{Dir: filepath.Join(t.TempDir(), "identity"), Hub: "tls://" + c.door.Addr(), Hash: c.ca.Hash(), Renew: true}
			out := c.runChild(t, o, point)
			if !strings.Contains(out, failpoint.ReachedPrefix+point) {
				t.Fatalf("it did not die there: %s", out)
			}
			if out := c.runChild(t, o, ""); out != "" {
				t.Errorf("the next one: %s", out)
			}
			if n := readLocked(c, &c.enrolled); n != 1 {
				t.Errorf("the token was used %d times", n)
			}
			wantPrivate(t, o.Dir)
		})
	}
}

// runChild runs a child to its end, and returns its output.
func (c *fakeCloud) runChild(t *testing.T, o childTask, point string) string {
	t.Helper()
	text, err := json.Marshal(o)
	kit.Must(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childOrder+"="+string(text), failpoint.Env+"="+point)
	out, err := cmd.CombinedOutput()
	if point == "" && err != nil {
		t.Errorf("child: %v", err)
	}
	return string(out)
}

// A gateway is suspended for longer than its key's life, and so is its clock: the known cloud time advances, and the key is
// renewed after the resume.
func TestTrustedClock_AdvancesDuringSuspend(t *testing.T) {
	c := newFakeCloud(t)
	c.update(func() { c.life = time.Minute })
	cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
	var slept atomic.Int64
	began := time.Now()
	cfg.Up = func() time.Duration { return time.Since(began) + time.Duration(slept.Load()) }
	cfg.Wall = func() time.Time { return began }
	g := runGateway(t, cfg)
	kit.Eventually(t, "enrolled", func() bool { return g.renewer.Record().Key != "" && g.leaf.Link().Up })
	first := g.renewer.Record().Key
	slept.Store(int64(50 * time.Second))
	if d := time.Until(g.renewer.Now()); d < 40*time.Second || d > time.Minute {
		t.Errorf("after a sleep of 50 s it takes the time to be %s later", d)
	}
	g.leaf.Redial() // as when it finds its link dead after the resume
	kit.Eventually(t, "its key is renewed", func() bool { return g.renewer.Record().Key != first })
	known := savedFloor(t, cfg.Dir)
	if known.Before(began) {
		t.Errorf("the known time on disk is %s", known)
	}
}

// The cloud is restored to a copy from before the last renewal: it knows only the previous key. The gateway presents that
// too, and renews at once, so that it has a current key again.
func TestRenewer_CloudRestoredToOlderCopy(t *testing.T) {
	c := newFakeCloud(t)
	c.update(func() { c.life = 6 * time.Second })
	cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
	g := runGateway(t, cfg)
	kit.Eventually(t, "enrolled", func() bool { return g.renewer.Record().Key != "" })
	before := g.renewer.Record().Key
	kit.Eventually(t, "a renewal", func() bool { return g.renewer.Record().Key != before })
	after := g.renewer.Record().Key
	c.update(func() { c.life, c.key, c.previous, c.expires = time.Hour, before, "", time.Now().Add(time.Hour) })
	c.door.CloseLinks()
	kit.Eventually(t, "its key is known again", func() bool {
		return readLocked(c, &c.key) == after && g.renewer.Record().Key == after && g.leaf.Link().Up
	})
	if n := readLocked(c, &c.enrolled); n != 1 {
		t.Errorf("the token was used %d times", n)
	}
}
