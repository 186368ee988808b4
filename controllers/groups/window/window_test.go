package window_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/controllers/groups/window"
)

func parse(t testing.TB, text string) window.Windows {
	t.Helper()
	w, err := window.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestWindows(t *testing.T) {
	const saturday = `[{"schedule": "0 2 * * 6", "timeZone": "Europe/Berlin", "duration": "3h"}]`
	for name, tt := range map[string]struct {
		text, at string
		open     bool
		next     string // "" is never
	}{
		"no annotation":                         {"", "2026-08-01T00:00:00Z", true, ""},
		"before":                                {saturday, "2026-07-31T23:59:59Z", false, "2026-08-01T00:00:00Z"},
		"at its start":                          {saturday, "2026-08-01T00:00:00Z", true, "2026-08-01T03:00:00Z"},
		"within, with a fraction":               {saturday, "2026-08-01T02:59:59.9Z", true, "2026-08-01T03:00:00Z"},
		"at its end":                            {saturday, "2026-08-01T03:00:00Z", false, "2026-08-08T00:00:00Z"},
		"winter is an hour later":               {saturday, "2026-01-03T01:00:00Z", true, "2026-01-03T04:00:00Z"},
		"no zone is UTC":                        {`[{"schedule": "0 2 * * *", "duration": "30m"}]`, "2026-08-01T02:29:00Z", true, "2026-08-01T02:30:00Z"},
		"a name":                                {`[{"schedule": "@daily", "duration": "1h"}]`, "2026-08-01T23:00:00Z", false, "2026-08-02T00:00:00Z"},
		"over midnight":                         {`[{"schedule": "0 23 * * *", "duration": "2h"}]`, "2026-08-02T00:59:00Z", true, "2026-08-02T01:00:00Z"},
		"longer than its period is always open": {`[{"schedule": "0 * * * *", "duration": "2h"}]`, "2026-08-02T00:59:00Z", true, ""},
		"one begins as another ends": {
			`[{"schedule": "0 1 * * *", "duration": "1h"}, {"schedule": "0 2 * * *", "duration": "1h"}]`, "2026-08-02T01:30:00Z", true, "2026-08-02T03:00:00Z",
		},
		"they overlap": {
			`[{"schedule": "0 1 * * *", "duration": "3h"}, {"schedule": "0 2 * * *", "duration": "1h"}]`, "2026-08-02T02:30:00Z", true, "2026-08-02T04:00:00Z",
		},
		"the earlier start": {
			`[{"schedule": "0 9 * * *", "duration": "1h"}, {"schedule": "0 5 * * *", "duration": "1h"}]`, "2026-08-02T02:30:00Z", false, "2026-08-02T05:00:00Z",
		},
		"two zones": {
			`[{"schedule": "0 2 * * *", "timeZone": "Asia/Tokyo", "duration": "1h"}, {"schedule": "0 2 * * *", "timeZone": "America/New_York", "duration": "1h"}]`,
			"2026-08-01T18:00:00Z", false, "2026-08-02T06:00:00Z",
		},
		// On 29 March 2026 the hour from 2:00 is left out in Berlin: a window that begins in it is left out, as a CronJob's start is.
		"begins in the hour left out":  {`[{"schedule": "30 2 * * *", "timeZone": "Europe/Berlin", "duration": "1h"}]`, "2026-03-29T01:15:00Z", false, "2026-03-30T00:30:00Z"},
		"spans the hour left out":      {`[{"schedule": "0 1 * * *", "timeZone": "Europe/Berlin", "duration": "3h"}]`, "2026-03-29T02:59:00Z", true, "2026-03-29T03:00:00Z"},
		"spans the hour that is twice": {`[{"schedule": "0 1 * * *", "timeZone": "Europe/Berlin", "duration": "3h"}]`, "2026-10-25T01:59:00Z", true, "2026-10-25T02:00:00Z"},
		"29 February":                  {`[{"schedule": "0 0 29 2 *", "duration": "1h"}]`, "2026-03-01T00:00:00Z", false, "2028-02-29T00:00:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			w, at := parse(t, tt.text), instant(t, tt.at)
			if open := w.OpenAt(at); open != tt.open {
				t.Errorf("open: %t, want %t", open, tt.open)
			}
			var want time.Time
			if tt.next != "" {
				want = instant(t, tt.next)
			}
			if next := w.Next(at); !next.Equal(want) {
				t.Errorf("next change: %s, want %s", next.UTC(), want)
			}
		})
	}
}

// TestParse_Faults: the error names the window and the field.
func TestParse_Faults(t *testing.T) {
	for name, tt := range map[string]struct{ text, fault string }{
		"no JSON":                  {"0 2 * * 6", "not a list such as"},
		"no list":                  {`{"schedule": "0 2 * * 6", "duration": "3h"}`, "not a list such as"},
		"an empty list":            {`[]`, "0 windows"},
		"more text":                {`[{"schedule": "@daily", "duration": "1h"}] x`, "more text"},
		"an unknown field":         {`[{"cron": "@daily", "duration": "1h"}]`, `unknown field "cron"`},
		"no schedule":              {`[{"duration": "1h"}]`, "[0]: schedule: "},
		"no duration":              {`[{"schedule": "@daily"}]`, "[0]: duration: "},
		"too short":                {`[{"schedule": "@daily", "duration": "59s"}]`, "duration: 59s is not within"},
		"too long":                 {`[{"schedule": "@daily", "duration": "169h"}]`, "duration: 169h is not within"},
		"six fields":               {`[{"schedule": "0 0 2 * * 6", "duration": "1h"}]`, "schedule: "},
		"every":                    {`[{"schedule": "@every 5h", "duration": "1h"}]`, "no fixed times"},
		"a zone in the schedule":   {`[{"schedule": "CRON_TZ=UTC 0 2 * * *", "duration": "1h"}]`, "use the field timeZone"},
		"a zone without an end":    {`[{"schedule": "TZ=0", "duration": "1h"}]`, "use the field timeZone"},
		"an unknown zone":          {`[{"schedule": "@daily", "timeZone": "Mars/Base", "duration": "1h"}]`, `timeZone: "Mars/Base"`},
		"the zone of the machine":  {`[{"schedule": "@daily", "timeZone": "Local", "duration": "1h"}]`, `timeZone: "Local"`},
		"a date that never is":     {`[{"schedule": "0 0 30 2 *", "duration": "1h"}]`, "no date that exists"},
		"the second of two":        {`[{"schedule": "@daily", "duration": "1h"}, {"schedule": "x", "duration": "1h"}]`, "[1]: schedule: "},
		"too many":                 {"[" + strings.Repeat(`{"schedule":"@daily","duration":"1h"},`, 32) + `{"schedule":"@daily","duration":"1h"}]`, "33 windows"},
		"a text that is too large": {"[" + strings.Repeat(" ", 9000) + "]", "9002 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := window.Parse(tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.fault) || !w.Empty() {
				t.Errorf("error %v, want %q", err, tt.fault)
			}
		})
	}
}

// TestWindows_NextIsTheNextChange compares Next with a walk from minute to minute, around both changes of the clock.
func TestWindows_NextIsTheNextChange(t *testing.T) {
	zones := []string{"UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe"}
	for seed := range uint64(25) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test that can be repeated
		var list []string
		for range 1 + r.IntN(3) {
			list = append(list, `{"schedule":"`+[]string{"30 2 * * *", "0 */5 * * *", "15 1 * * 0", "45 1,3 * * *"}[r.IntN(4)]+
				`","timeZone":"`+zones[r.IntN(len(zones))]+`","duration":"`+[]string{"20m", "1h", "5h", "26h"}[r.IntN(4)]+`"}`)
		}
		text := "[" + strings.Join(list, ",") + "]"
		w := parse(t, text)
		at := time.Date(2026, []time.Month{3, 10, 4}[r.IntN(3)], 25+r.IntN(6), r.IntN(24), r.IntN(60), 0, 0, time.UTC)
		next, open := w.Next(at), w.OpenAt(at)
		walked := at
		for walked = walked.Add(time.Minute); walked.Before(at.AddDate(0, 0, 9)) && w.OpenAt(walked) == open; {
			walked = walked.Add(time.Minute)
		}
		if walked.Before(at.AddDate(0, 0, 9)) != (!next.IsZero() && next.Before(at.AddDate(0, 0, 9))) || walked.Before(at.AddDate(0, 0, 9)) && !next.Equal(walked) {
			t.Errorf("seed %d: %s at %s (open: %t): Next is %s, by minutes %s", seed, text, at, open, next.UTC(), walked)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`[{"schedule": "0 2 * * 6", "timeZone": "Europe/Berlin", "duration": "3h"}]`)
	f.Add(`[{"schedule": "*/1 * * * *", "duration": "1m"}]`)
	f.Add(`[{"schedule": "TZ=UTC 0 2 * * *", "duration": "1h"}]`)
	now := time.Date(2026, 3, 29, 0, 30, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		w, err := window.Parse(text)
		if err != nil {
			return
		}
		open, next := w.OpenAt(now), w.Next(now)
		if next.IsZero() {
			return
		}
		if !next.After(now) || w.OpenAt(next) == open {
			t.Errorf("open %t at %s, next change %s, then %t", open, now, next, w.OpenAt(next))
		}
	})
}
