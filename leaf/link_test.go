package leaf_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

// startLinkedLeaf starts a leaf that is linked to a hub through a proxy; a responder at the hub answers "echo".
func startLinkedLeaf(t *testing.T, cfg leaf.Config) (*leaftest.Hub, *relaytest.Relay, *leaftest.Leaf, *nats.Conn) {
	t.Helper()
	hub := leaftest.NewHub(t)
	proxy := relaytest.Start(t, hub.Addr(), relaytest.Config{})
	if _, err := hub.Conn().Subscribe("echo", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil {
		t.Fatal(err)
	}
	cfg.Hub = []string{leaftest.URL(proxy.Addr())}
	l := leaftest.StartLeaf(t, cfg)
	l.WaitLink(true)
	nc := l.Client()
	eventually(t, "first round trip", func() error { return roundTrip(nc) })
	return hub, proxy, l, nc
}

func TestLink_CutAndHeal(t *testing.T) {
	_, proxy, l, nc := startLinkedLeaf(t, leaf.Config{})
	for range 3 {
		before := l.Link()
		proxy.Cut()
		down := l.WaitLink(false)
		if down.Up || down.Since.Before(before.Since) {
			t.Errorf("state %+v after %+v", down, before)
		}
		proxy.Heal()
		healed := time.Now()
		up := l.WaitLink(true)
		t.Logf("link up %v after the heal", time.Since(healed))
		if up.Reconnects != before.Reconnects+1 {
			t.Errorf("reconnects %d, want %d", up.Reconnects, before.Reconnects+1)
		}
		eventually(t, "round trip after heal", func() error { return roundTrip(nc) })
	}
	if !nc.IsConnected() || nc.Stats().Reconnects != 0 {
		t.Error("the client in the process noticed the cut")
	}
}

func TestLink_SilenceIsFoundByPings(t *testing.T) {
	for name, directions := range map[string][]relaytest.Direction{
		"both":     nil,
		"to hub":   {relaytest.ToTarget},
		"from hub": {relaytest.FromTarget},
	} {
		t.Run(name, func(t *testing.T) {
			_, proxy, l, nc := startLinkedLeaf(t, leaf.Config{})
			begun := time.Now()
			proxy.Silence(directions...)
			l.WaitLink(false)
			t.Logf("found after %v with 1 s pings", time.Since(begun))
			proxy.Heal()
			l.WaitLink(true)
			eventually(t, "round trip after heal", func() error { return roundTrip(nc) })
		})
	}
}

// The guarantee with a gateway's real timeouts: found within 30 s. The hub stays silent, as after a lost NAT entry.
func TestLink_HalfOpenIsFoundInTime(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for real pings")
	}
	t.Parallel()
	_, proxy, l, nc := startLinkedLeaf(t, leaf.Config{PingInterval: 5 * time.Second, RedialMin: 2 * time.Second, RedialMax: 15 * time.Second})
	begun := time.Now()
	proxy.Silence(relaytest.FromTarget)
	l.WaitLink(false)
	took := time.Since(begun)
	t.Logf("found after %v", took)
	if took > 30*time.Second {
		t.Errorf("found after %v, want at most 30 s", took)
	}
	proxy.Heal()
	l.WaitLink(true)
	eventually(t, "round trip after heal", func() error { return roundTrip(nc) })
}

// A hub that answers only pings is treated as unreachable.
func TestLink_ProbesDropLinkWithoutAnswers(t *testing.T) {
	var broken atomic.Bool
	var client atomic.Pointer[nats.Conn]
	hub, _, l, nc := startLinkedLeaf(t, leaf.Config{
		ProbeAfter: 200 * time.Millisecond, ProbeInterval: 100 * time.Millisecond, ProbeTimeout: 3 * time.Second,
		Probe: func(ctx context.Context) error {
			if broken.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			if nc := client.Load(); nc != nil {
				_, err := nc.RequestWithContext(ctx, "echo", nil)
				return err
			}
			return nil
		},
	})
	client.Store(nc)
	if hub.Leafs() != 1 {
		t.Fatalf("%d leafs at the hub, want 1", hub.Leafs())
	}
	begun := time.Now()
	broken.Store(true)
	l.WaitLink(false)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("dropped after %v, want about 3 s", took)
	}
	broken.Store(false)
	l.WaitLink(true)
	eventually(t, "round trip after the drop", func() error { return roundTrip(nc) })
}

// Messages over a link prove that it is alive, though the answers to probes are late.
func TestLink_BusyLinkIsNotDropped(t *testing.T) {
	answers := make(chan struct{})
	hub, _, l, nc := startLinkedLeaf(t, leaf.Config{
		ProbeAfter: time.Millisecond, ProbeInterval: 50 * time.Millisecond, ProbeTimeout: 2 * time.Second,
		Probe: func(ctx context.Context) error {
			select {
			case <-answers:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	})
	messages, err := nc.SubscribeSync("large")
	if err != nil {
		t.Fatal(err)
	}
	link, sender := l.WaitLink(true), hub.Conn()
	began := time.Now()
	for time.Since(began) < 5*time.Second { // a silent link is dropped after 2 s
		if err := sender.Publish("large", make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		_, _ = messages.NextMsg(20 * time.Millisecond) // the first ones arrive before the hub knows of the subscription
	}
	if now := l.Link(); now != link {
		t.Errorf("the link was %+v, now %+v", link, now)
	}
	close(answers)
}

// A link over which messages arrive costs the hub no probe; a silent one gets them.
func TestLink_IsProbedOnlyWhenSilent(t *testing.T) {
	var probes atomic.Int64
	hub, _, l, nc := startLinkedLeaf(t, leaf.Config{
		ProbeAfter: 2 * time.Second, ProbeInterval: 50 * time.Millisecond, ProbeTimeout: 10 * time.Second,
		Probe: func(context.Context) error { probes.Add(1); return nil },
	})
	messages, err := nc.SubscribeSync("heartbeat")
	if err != nil {
		t.Fatal(err)
	}
	l.WaitLink(true)
	cloud := hub.Conn()
	for began := time.Now(); time.Since(began) < 4*time.Second; {
		if err := errors.Join(cloud.Publish("heartbeat", nil), cloud.Flush()); err != nil {
			t.Fatal(err)
		}
		_, _ = messages.NextMsg(20 * time.Millisecond) // the first ones arrive before the hub knows of the subscription
	}
	if n := probes.Load(); n != 0 {
		t.Errorf("%d probes of a link over which messages arrived, want none", n)
	}
	eventually(t, "a probe of the silent link", func() error {
		if probes.Load() == 0 {
			return errors.New("none yet")
		}
		return nil
	})
}

func TestLink_ComesBackAfterHubRestart(t *testing.T) {
	hub, _, l, nc := startLinkedLeaf(t, leaf.Config{})
	hub.Stop()
	l.WaitLink(false)
	hub.Start()
	l.WaitLink(true)
	eventually(t, "round trip after the restart", func() error { return roundTrip(nc) })
}

func TestLink_FailsOverToSecondHubURL(t *testing.T) {
	hub := leaftest.NewHub(t)
	dead, live := relaytest.Start(t, hub.Addr(), relaytest.Config{}), relaytest.Start(t, hub.Addr(), relaytest.Config{})
	dead.Silence()
	l := leaftest.StartLeaf(t, leaf.Config{
		Hub:         []string{leaftest.URL(dead.Addr()), leaftest.URL(live.Addr())},
		DialTimeout: time.Second,
	})
	l.WaitLink(true)
	dead.Heal()
	live.Cut()
	l.WaitLink(false)
	l.WaitLink(true)
}

// Redial drops the current link.
func TestLink_RedialReplacesTheLink(t *testing.T) {
	_, proxy, l, nc := startLinkedLeaf(t, leaf.Config{})
	before := l.Link()
	l.Redial()
	eventually(t, "another link", func() error {
		if now := l.Link(); !now.Up || now.Reconnects != before.Reconnects+1 {
			return fmt.Errorf("link %+v", now)
		}
		return nil
	})
	eventually(t, "round trip over the new remote", func() error { return roundTrip(nc) })
	proxy.Cut()
	l.WaitLink(false)
	proxy.Heal()
	l.WaitLink(true)
}

func TestLink_RejectedLeafIsNotUp(t *testing.T) {
	hub := leaftest.NewHub(t)
	proxy := relaytest.Start(t, hub.Addr(), relaytest.Config{})
	proxy.Cut()
	l := leaftest.StartLeaf(t, leaf.Config{Hub: []string{leaftest.URL(proxy.Addr())}})
	if l.Link().Up {
		t.Error("link is up towards a hub that resets")
	}
	proxy.Heal()
	l.WaitLink(true)
}

// A link that is lost after hours is no dial that the hub left unanswered for hours.
func TestLink_IsNoStalledDial(t *testing.T) {
	_, _, l, _ := startLinkedLeaf(t, leaf.Config{})
	if d := l.Dial(); d.Stalled(time.Now().Add(time.Hour)) {
		t.Errorf("the dial of a link counts as unanswered: %+v", d)
	}
}

// A hub that accepts connections and does not answer is overloaded; one that closes them at once is not.
func TestLink_StalledDial(t *testing.T) {
	for name, hold := range map[string]bool{"silent": true, "closing": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			relaytest.Serve(t, l, func(ctx context.Context, _ net.Conn) {
				if hold {
					<-ctx.Done()
				}
			})
			server := leaftest.StartLeaf(t, leaf.Config{Hub: []string{leaftest.URL(l.Addr().String())}, RedialMin: time.Minute})
			eventually(t, "the hub is reached", func() error {
				if d := server.Dial(); d.ReachedAt.IsZero() || d.ClosedAt.IsZero() != hold {
					return fmt.Errorf("dial %+v", d)
				}
				return nil
			})
			dial := server.Dial()
			if got := dial.Stalled(dial.ReachedAt.Add(5 * time.Second)); got != hold {
				t.Errorf("stalled after 5 s: %t, want %t", got, hold)
			}
			if dial.Stalled(dial.ReachedAt.Add(time.Second)) {
				t.Error("stalled after a second")
			}
		})
	}
}
