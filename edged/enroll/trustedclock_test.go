package enroll_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/test/kit"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// The time that a gateway derives from its clock and its inputs.
func TestTrustedClock(t *testing.T) {
	base := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) // the known time
	for name, tt := range map[string]struct {
		floor time.Time
		// wall is the machine's clock at the check, up how long the machine has run by then, since the last input.
		wall, up time.Duration
		tell     func(c enroll.Clock)
		// want and known are after base.
		want, known time.Duration
		doubtful    bool
	}{
		"nothing known":           {floor: time.Time{}, wall: -10 * year, want: -10 * year},
		"right":                   {floor: base, wall: 3 * day, up: 2 * day, want: 3 * day},
		"almost a year off":       {floor: base, wall: year - day, want: year - day},
		"a second behind":         {floor: base, wall: -time.Second, up: time.Hour, want: time.Hour, doubtful: true},
		"ten years behind":        {floor: base, wall: -10 * year, up: 2 * day, want: 2 * day, doubtful: true},
		"ten years ahead":         {floor: base, wall: 10 * year, up: 2 * day, want: 2 * day, doubtful: true},
		"more than a year ahead":  {floor: base, wall: year + day, up: time.Hour, want: time.Hour, doubtful: true},
		"told, and the clock ran": {floor: base, wall: 5 * day, up: day, tell: withCloudTimes(base.Add(4 * day)), want: 5 * day, known: 5 * day},
		"told, and it jumped by half a year": {
			floor: base, wall: year / 2, up: day, tell: withCloudTimes(base.Add(4 * day)), want: 5 * day, known: 5 * day,
		},
		"told, and it jumped back":      {floor: base, wall: -year / 2, up: day, tell: withCloudTimes(base.Add(4 * day)), want: 5 * day, known: 5 * day},
		"told, and it jumped far ahead": {floor: base, wall: 10 * year, up: day, tell: withCloudTimes(base.Add(4 * day)), want: 5 * day, known: 5 * day},
		"told twice":                    {floor: base, up: day, tell: withCloudTimes(base.Add(4*day), base.Add(2*day)), want: 3 * day, known: 3 * day},
		"told without a known time":     {wall: year, up: day, tell: withCloudTimes(base), want: day, known: day},
		"certificate, ten years behind": {
			floor: base, wall: -10 * year, up: day, tell: withHubCertificate(base.Add(30 * day)), want: 31*day + time.Second, known: 30 * day, doubtful: true,
		},
		"certificate, ten years ahead": {
			floor: base, wall: 10 * year, up: day, tell: withHubCertificate(base.Add(30 * day)), want: 31*day + time.Second, known: 30 * day, doubtful: true,
		},
		"certificate of before": {floor: base, wall: 3 * day, tell: func(c enroll.Clock) { c.RaiseFloor(base.Add(-day)) }, want: 3 * day},
		"certificate, then the clock is set": {
			floor: base, wall: 40 * day, up: day, tell: withHubCertificate(base.Add(30 * day)), want: 40 * day, known: 30 * day,
		},
		"certificate, then told": {
			floor: base, wall: -10 * year, up: day, want: 36 * day, known: 36 * day,
			tell: func(c enroll.Clock) { withHubCertificate(base.Add(30 * day))(c); c.SetCloudTime(base.Add(35 * day)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			up := 100 * day // before any of this
			c := enroll.NewClock(func() time.Time { return base.Add(tt.wall) }, func() time.Duration { return up }, tt.floor)
			if tt.tell != nil {
				tt.tell(c)
			}
			up += tt.up
			if now, doubtful := c.Now(); !now.Equal(base.Add(tt.want)) || doubtful != tt.doubtful {
				t.Errorf("it is %s (doubtful: %v), want %s (%v)", now, doubtful, base.Add(tt.want), tt.doubtful)
			}
			if known := c.KnownTime(); (!tt.floor.IsZero() || tt.tell != nil) && !known.Equal(base.Add(tt.known)) {
				t.Errorf("known is %s, want %s", known, base.Add(tt.known))
			}
		})
	}
	c := enroll.NewClock(func() time.Time { return base.Add(time.Hour) }, nil, base)
	if ahead := c.SetCloudTime(base); ahead != time.Hour {
		t.Errorf("the clock is %s ahead, it says", ahead)
	}
}

func withCloudTimes(times ...time.Time) func(enroll.Clock) {
	return func(c enroll.Clock) {
		for _, at := range times {
			c.SetCloudTime(at)
		}
	}
}

// withHubCertificate sets the start of a hub certificate's validity.
func withHubCertificate(from time.Time) func(enroll.Clock) {
	return func(c enroll.Clock) {
		c.RaiseFloor(from)
		c.AssumeTime(from.Add(time.Second))
	}
}

// wantTime checks the time that a gateway derives, and the saved one.
func wantTime(t *testing.T, g *testGateway, dir string) {
	t.Helper()
	if off := time.Until(g.renewer.Now()).Abs(); off > time.Hour {
		t.Errorf("it takes the time to be %s", g.renewer.Now())
	}
	if off := time.Until(savedFloor(t, dir)).Abs(); off > time.Hour {
		t.Errorf("the known time on disk is %s", savedFloor(t, dir))
	}
}

// savedFloor returns the known time on a gateway's disk.
func savedFloor(t *testing.T, dir string) time.Time {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "clock.json"))
	kit.Must(t, err)
	var known struct{ Floor time.Time }
	kit.Must(t, json.Unmarshal(data, &known))
	return known.Floor
}

// writeOldFloor back-dates a gateway's known time by d.
func writeOldFloor(t *testing.T, dir string, d time.Duration) {
	t.Helper()
	data, err := json.Marshal(map[string]time.Time{"floor": time.Now().Add(-d)})
	kit.Must(t, err)
	kit.Must(t, os.WriteFile(filepath.Join(dir, "clock.json"), data, 0o600))
}

func wrongClocks() map[string]func() time.Time {
	return map[string]func() time.Time{
		"behind": shiftedClock(-10), "ahead": shiftedClock(10), "1970": func() time.Time { return time.Unix(100, 0) },
	}
}

// An enrolled gateway boots with a clock that is ten years off, either way, or starts in 1970: it links, and knows the time.
func TestRenewer_WrongClockStillLinks(t *testing.T) {
	for name, wall := range wrongClocks() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFakeCloud(t)
			cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
			_, err := joinCloud(t, cfg)
			kit.Must(t, err)
			cfg.Wall = wall
			g := runGateway(t, cfg)
			kit.Eventually(t, "a link", func() bool { return g.leaf.Link().Up })
			wantTime(t, g, cfg.Dir)
			if n := readLocked(c, &c.changes); n != 1 {
				t.Errorf("%d keys were recorded", n)
			}
		})
	}
}

// A gateway that was off for so long that the hub's certificate starts after the last known time takes that certificate's
// time, and saves it as a lower bound: at the next boot it knows at least that much, whatever certificate it gets.
func TestRenewer_TakesTimeOfHubCertificate(t *testing.T) {
	for name, wall := range wrongClocks() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newFakeCloud(t)
			cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
			_, err := joinCloud(t, cfg)
			kit.Must(t, err)
			writeOldFloor(t, cfg.Dir, 200*day)
			from := time.Now().Add(-10 * time.Minute).Truncate(time.Second)
			c.update(func() { c.cert = c.ca.ServingCert(from, time.Now().Add(time.Hour)) })
			cfg.Wall = wall
			g := runGateway(t, cfg)
			kit.Eventually(t, "a link", func() bool { return g.leaf.Link().Up })
			kit.Eventually(t, "the certificate's time is on disk", func() bool { return !savedFloor(t, cfg.Dir).Before(from) })
			wantTime(t, g, cfg.Dir)
			g.stop()

			// A hub with a certificate from before that time is refused.
			c.update(func() { c.cert = c.ca.ServingCert(from.Add(-200*day), from.Add(-day)) })
			g = runGateway(t, cfg)
			kit.Eventually(t, "it has looked at the hub", func() bool { return g.leaf.Problem() != nil })
			if now := g.renewer.Now(); now.Before(from) {
				t.Errorf("it takes the time to be %s again", now)
			}
		})
	}
}

// The clock jumps forth and back, within and beyond the plausible range, and each time the link is created again: it comes up,
// the time is unchanged, and no key is renewed for it. lasting is a hub's certificate that is valid at each of those times,
// so that a wrong time causes renewals; with a short one it leaves no link.
func TestRenewer_ClockJumps(t *testing.T) {
	for name, tt := range map[string]struct {
		began   time.Duration // by how much the clock is ahead at the start
		lasting bool
		jumps   []time.Duration
	}{
		"told, lasting certificate": {0, true, []time.Duration{200 * day, -200 * day, 10 * year, -10 * year, 0}},
		"told, short certificate":   {0, false, []time.Duration{200 * day, -200 * day, 10 * year, -10 * year, 0}},
		"booted ten years ahead":    {10 * year, true, []time.Duration{-10 * year, 10 * year, -10 * year}},
		"booted ten years behind":   {-10 * year, true, []time.Duration{10 * year, -10 * year, 10 * year}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, began := newFakeCloud(t), time.Now()
			const life = 20 * time.Second // a due renewal waits for a twentieth at most
			c.update(func() { c.life = life })
			if tt.lasting {
				c.update(func() { c.cert = c.ca.ServingCert(time.Now().Add(-15*year), time.Now().Add(15*year)) })
			}
			cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
			if tt.began != 0 { // otherwise the gateway enrols, and gets the time with that
				_, err := joinCloud(t, cfg)
				kit.Must(t, err)
			}
			var off atomic.Int64
			off.Store(int64(tt.began))
			cfg.Wall = func() time.Time { return time.Now().Add(time.Duration(off.Load())) }
			g := runGateway(t, cfg)
			kit.Eventually(t, "enrolled", func() bool { return g.renewer.Record().Key != "" && g.leaf.Link().Up && readLocked(c, &c.pings) > 0 })
			for _, jump := range tt.jumps {
				off.Store(int64(jump))
				pings := readLocked(c, &c.pings)
				c.door.CloseLinks()
				kit.Eventually(t, "a new link", func() bool { return g.leaf.Link().Up && readLocked(c, &c.pings) > pings })
				<-time.After(life / 10) // twice as long as a due renewal takes
				wantTime(t, g, cfg.Dir)
			}
			// A key is renewed after 7/12 of its life at the earliest. Renewals caused by the clock happen once a second.
			most := 1 + int(time.Since(began)/(life*7/12))
			if n := readLocked(c, &c.changes); n > most {
				t.Errorf("%d keys were recorded in %s, %d are right", n, time.Since(began), most)
			}
			t.Logf("%d keys in %s", readLocked(c, &c.changes), time.Since(began))
		})
	}
}

// A gateway that has not received the cloud's time since its start trusts a clock that is half an hour ahead. That causes
// one renewal, whose answer sets the cloud's time.
func TestRenewer_ClockJumpRenewsOnce(t *testing.T) {
	t.Parallel()
	c := newFakeCloud(t)
	c.update(func() { c.life = time.Minute }) // a due renewal waits for 3 s at most
	cfg := c.newConfig(filepath.Join(t.TempDir(), "identity"))
	_, err := joinCloud(t, cfg)
	kit.Must(t, err)
	cfg.Wall = func() time.Time { return time.Now().Add(30 * time.Minute) } // the hub's certificate is valid for an hour
	g := runGateway(t, cfg)
	kit.Eventually(t, "a renewal", func() bool { return readLocked(c, &c.changes) == 2 })
	<-time.After(8 * time.Second)
	if n := readLocked(c, &c.changes); n != 2 {
		t.Errorf("%d keys were recorded", n)
	}
	if d := time.Until(g.renewer.Now()).Abs(); d > time.Minute {
		t.Errorf("it takes the time to be %s", g.renewer.Now())
	}
}
