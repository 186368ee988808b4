package enrol_test

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

	"github.com/frond-edge/frond/internal/crash"
	"github.com/frond-edge/frond/internal/enrol"
	"github.com/frond-edge/frond/leaf"
)

// gateway is a leaf and the keeper of its identity, as edgecore has them.
type gateway struct {
	keeper *enrol.Keeper
	leaf   *leaf.Server
	stop   func()
}

func start(ctx context.Context, cfg enrol.Config, dir string, log *zap.Logger) (*gateway, error) {
	k, err := enrol.New(cfg, log)
	if err != nil {
		return nil, err
	}
	way := leaf.Config{Node: cfg.Node, Dir: dir, Reserve: -1, RedialMin: 100 * time.Millisecond, RedialMax: 500 * time.Millisecond}
	k.Wire(&way)
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
	return &gateway{k, l, func() {
		cancel()
		_ = g.Wait()
	}}, nil
}

func run(t *testing.T, cfg enrol.Config) *gateway {
	t.Helper()
	g, err := start(context.WithoutCancel(t.Context()), cfg, t.TempDir(), zaptest.NewLogger(t))
	must(t, err)
	t.Cleanup(g.stop)
	return g
}

func within(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// relink ends the gateway's link and waits for its next one.
func (g *gateway) relink(t *testing.T, c *cloud) {
	t.Helper()
	before := g.leaf.Link().Reconnects
	c.door.Kick()
	within(t, "another link", func() bool { l := g.leaf.Link(); return l.Up && l.Reconnects > before })
}

// A gateway that only knows a token enrols by itself, renews its key in time, again and again, and is let in with the newest one. Its
// link stays, and the cloud hears that it has the key; where the cloud has forgotten whose the link is, the gateway gives it up itself before
// the next renewal, and no answer is lost with it.
func TestAKeyIsRenewedInTime(t *testing.T) {
	for name, forgetful := range map[string]bool{"link carried over": false, "link forgotten": true} {
		t.Run(name, func(t *testing.T) { renewedInTime(t, forgetful) })
	}
}

func renewedInTime(t *testing.T, forgetful bool) {
	t.Helper()
	c := newCloud(t)
	c.set(func() { c.life, c.forgetful = 6*time.Second, forgetful })
	cfg := c.config(filepath.Join(t.TempDir(), "identity"))
	g := run(t, cfg)
	within(t, "enrolled", func() bool { return g.keeper.Record().Key != "" })
	within(t, "a renewal", func() bool { return read(c, &c.changes) >= 2 })
	links := g.leaf.Link().Reconnects
	within(t, "another renewal", func() bool { return read(c, &c.changes) >= 3 })
	if again := g.leaf.Link().Reconnects - links; again > 0 != forgetful {
		t.Errorf("%d links were made anew", again)
	}
	if !forgetful {
		within(t, "the cloud hears that its answer came", func() bool { return read(c, &c.confirmed) > 0 })
	}
	if n := read(c, &c.enrolled); n != 1 {
		t.Errorf("the token was used %d times", n)
	}
	if n := read(c, &c.lost); n != 0 {
		t.Errorf("%d answers were lost with their link", n)
	}
	shown := read(c, &c.tokens)
	g.relink(t, c)
	within(t, "a link with the newest key", func() bool { return g.leaf.Link().Up && g.keeper.Record().Key == read(c, &c.key) })
	if read(c, &c.tokens) != shown {
		t.Error("an enrolled gateway has shown its token again")
	}
}

// The cloud knows the key alone that a gateway asked for and never heard of again: the gateway shows it, also when it has expired,
// and is itself again.
func TestTheNextKeyIsShownWhenNoOtherIsLetIn(t *testing.T) {
	for name, life := range map[string]time.Duration{"good": time.Hour, "expired": -time.Minute} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			cfg := c.config(filepath.Join(t.TempDir(), "identity"))
			_, err := join(t, cfg)
			must(t, err)
			pair, err := nkeys.CreateUser()
			must(t, err)
			seed, err := pair.Seed()
			must(t, err)
			next, err := pair.PublicKey()
			must(t, err)
			must(t, os.WriteFile(filepath.Join(cfg.Dir, "node.nk.next"), seed, 0o600))
			c.set(func() { c.key, c.previous, c.expires = next, "", time.Now().Add(life) })
			g := run(t, cfg)
			within(t, "it is the next key", func() bool { return g.keeper.Record().Key == next })
			within(t, "its key is good", func() bool { return read(c, &c.expires).After(time.Now()) })
			g.relink(t, c)
			if n := read(c, &c.enrolled); n != 1 {
				t.Errorf("the token was used %d times", n)
			}
		})
	}
}

// One that was away until its key had expired comes back by itself, within the window; after that it says what to do.
func TestAnExpiredKeyComesBack(t *testing.T) {
	for name, window := range map[string]time.Duration{"within the window": time.Hour, "after it": 0} {
		t.Run(name, func(t *testing.T) {
			c := newCloud(t)
			cfg := c.config(filepath.Join(t.TempDir(), "identity"))
			_, err := join(t, cfg)
			must(t, err)
			c.set(func() { c.expires, c.window = time.Now().Add(-time.Minute), window })
			g := run(t, cfg)
			if window == 0 {
				within(t, "it has asked twice", func() bool { return read(c, &c.refused) >= 2 })
				if read(c, &c.expires).After(time.Now()) || read(c, &c.changes) != 1 {
					t.Error("it was renewed")
				}
				within(t, "it says why", func() bool { return strings.Contains(g.keeper.Refused(), "make a token for it") })
				// The window is made longer by whoever runs the cloud: it comes back without a hand at the gateway.
				c.set(func() { c.window = time.Hour })
			}
			within(t, "renewed", func() bool { return read(c, &c.expires).After(time.Now()) && g.leaf.Link().Up })
			within(t, "it says no more that it is refused", func() bool { return g.keeper.Refused() == "" })
			if n := read(c, &c.enrolled); n != 1 {
				t.Errorf("the token was used %d times", n)
			}
		})
	}
}

// A gateway is killed between any two steps of its enrolment and of a renewal. It goes on from there; its token is used once, and
// it is never locked out.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	for _, point := range crash.Points()["enrolment"] {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t)
			c.set(func() { c.life = 4 * time.Second })
			o := order{Dir: filepath.Join(t.TempDir(), "identity"), Hub: "tls://" + c.door.Addr(), Hash: c.ca.Hash(), Renew: true}
			out := c.run(t, o, point)
			if !strings.Contains(out, crash.Said+point) {
				t.Fatalf("it did not die there: %s", out)
			}
			if out := c.run(t, o, ""); out != "" {
				t.Errorf("the next one: %s", out)
			}
			if n := read(c, &c.enrolled); n != 1 {
				t.Errorf("the token was used %d times", n)
			}
			private(t, o.Dir)
		})
	}
}

// run runs a child to its end, and returns what it said.
func (c *cloud) run(t *testing.T, o order, point string) string {
	t.Helper()
	text, err := json.Marshal(o)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childOrder+"="+string(text), crash.Env+"="+point)
	out, err := cmd.CombinedOutput()
	if point == "" && err != nil {
		t.Errorf("child: %v", err)
	}
	return string(out)
}

// A gateway sleeps for longer than its key lives, and its clock sleeps with it: what the cloud said of the time goes on, and the key
// is renewed when it wakes up.
func TestTheTimeGoesOnAsleep(t *testing.T) {
	c := newCloud(t)
	c.set(func() { c.life = time.Minute })
	cfg := c.config(filepath.Join(t.TempDir(), "identity"))
	var slept atomic.Int64
	began := time.Now()
	cfg.Up = func() time.Duration { return time.Since(began) + time.Duration(slept.Load()) }
	cfg.Wall = func() time.Time { return began }
	g := run(t, cfg)
	within(t, "enrolled", func() bool { return g.keeper.Record().Key != "" && g.leaf.Link().Up })
	first := g.keeper.Record().Key
	slept.Store(int64(50 * time.Second))
	if d := time.Until(g.keeper.Now()); d < 40*time.Second || d > time.Minute {
		t.Errorf("after a sleep of 50 s it takes the time to be %s later", d)
	}
	g.leaf.Redial() // as it finds its link dead when it wakes up
	within(t, "its key is renewed", func() bool { return g.keeper.Record().Key != first })
	known := floor(t, cfg.Dir)
	if known.Before(began) {
		t.Errorf("the known time on disk is %s", known)
	}
}

// The cloud is put back to a copy from before the last renewal: it knows the key before alone. The gateway shows that, too, and renews at
// once, so that it is what it was.
func TestTheCloudIsPutBack(t *testing.T) {
	c := newCloud(t)
	c.set(func() { c.life = 6 * time.Second })
	cfg := c.config(filepath.Join(t.TempDir(), "identity"))
	g := run(t, cfg)
	within(t, "enrolled", func() bool { return g.keeper.Record().Key != "" })
	before := g.keeper.Record().Key
	within(t, "a renewal", func() bool { return g.keeper.Record().Key != before })
	after := g.keeper.Record().Key
	c.set(func() { c.life, c.key, c.previous, c.expires = time.Hour, before, "", time.Now().Add(time.Hour) })
	c.door.Kick()
	within(t, "its key is known again", func() bool { return read(c, &c.key) == after && g.keeper.Record().Key == after && g.leaf.Link().Up })
	if n := read(c, &c.enrolled); n != 1 {
		t.Errorf("the token was used %d times", n)
	}
}
