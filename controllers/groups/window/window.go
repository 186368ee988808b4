// Package window evaluates the maintenance windows of a NodeGroup.
//
// The annotation frond.io/maintenance-windows holds a JSON list; each window has the fields of a CronJob, and how long it stays open:
//
//	[{"schedule": "0 2 * * 6", "timeZone": "Europe/Berlin", "duration": "3h"}]
//
// The group is open while at least one window is. All functions are pure, and the time zones are part of the program.
package window

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the image of cloudcore has no time zones

	"github.com/robfig/cron/v3"

	"github.com/frond-edge/frond/api/names"
)

const (
	// maxText and maxWindows bound the work for a group.
	maxText, maxWindows = 8 << 10, 32
	// A duration is within these: cron has minutes, and what stays open for longer than a week is no window.
	minDuration, maxDuration = time.Minute, 7 * 24 * time.Hour
	// maxOverlaps is how many windows that follow each other without a gap Next follows. Past them the group counts as always open: with the
	// shortest duration that is more than two days of windows, each of which begins before the last one ends.
	maxOverlaps = 5000
)

// Windows are the windows of one group. The zero value has none, and is always open. It does not change.
type Windows struct {
	list []window
}

// window is one of them.
type window struct {
	schedule cron.Schedule
	duration time.Duration
}

// spec is a window as users write it.
type spec struct {
	Schedule string `json:"schedule"`
	TimeZone string `json:"timeZone"`
	Duration string `json:"duration"`
}

// Parse parses the value of the annotation; "" has no windows. The error names each field that is wrong.
func Parse(text string) (Windows, error) {
	if strings.TrimSpace(text) == "" {
		return Windows{}, nil
	}
	fail := func(err error) (Windows, error) {
		return Windows{}, fmt.Errorf("annotation %s: %w", names.AnnotationMaintenanceWindows, err)
	}
	if len(text) > maxText {
		return fail(fmt.Errorf("%d bytes, at most %d", len(text), maxText))
	}
	var specs []spec
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&specs); err != nil {
		return fail(fmt.Errorf(`not a list such as [{"schedule": "0 2 * * 6", "timeZone": "Europe/Berlin", "duration": "3h"}]: %w`, err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fail(errors.New("there is more text after the list"))
	}
	if len(specs) == 0 || len(specs) > maxWindows {
		return fail(fmt.Errorf("%d windows, want 1 to %d; without windows remove the annotation", len(specs), maxWindows))
	}
	var w Windows
	var faults []error
	for i, s := range specs {
		one, err := s.parse()
		if err != nil {
			faults = append(faults, fmt.Errorf("[%d]: %w", i, err))
			continue
		}
		w.list = append(w.list, one)
	}
	if len(faults) > 0 {
		return fail(errors.Join(faults...))
	}
	return w, nil
}

func (s spec) parse() (window, error) {
	var faults []error
	duration, err := time.ParseDuration(s.Duration)
	switch {
	case err != nil:
		faults = append(faults, fmt.Errorf("duration: %q is no duration such as 3h or 90m", s.Duration))
	case duration < minDuration || duration > maxDuration:
		faults = append(faults, fmt.Errorf("duration: %s is not within %s and %s", s.Duration, minDuration, maxDuration))
	}
	zone := s.TimeZone
	if zone == "" {
		zone = "UTC"
	}
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		faults = append(faults, fmt.Errorf("timeZone: %q is not the name of a time zone such as Europe/Berlin", s.TimeZone))
	}
	schedule, err := parseSchedule(s.Schedule)
	if err != nil {
		faults = append(faults, fmt.Errorf("schedule: %w", err))
	}
	if err := errors.Join(faults...); err != nil {
		return window{}, err
	}
	schedule.Location = location
	if schedule.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, location)).IsZero() {
		return window{}, fmt.Errorf("schedule: %q names no date that exists", s.Schedule)
	}
	return window{schedule: schedule, duration: duration}, nil
}

// parseSchedule parses the five fields of cron, or a name such as @weekly.
func parseSchedule(text string) (*cron.SpecSchedule, error) {
	if strings.Contains(text, "TZ=") {
		return nil, fmt.Errorf("%q names a time zone: use the field timeZone", text)
	}
	schedule, err := parseStandard(text)
	if err != nil {
		return nil, err
	}
	fields, ok := schedule.(*cron.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("%q has no fixed times: use the five fields of cron", text)
	}
	return fields, nil
}

// parseStandard is cron.ParseStandard, whose panics for some texts are errors.
func parseStandard(text string) (schedule cron.Schedule, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%q is no schedule: %v", text, fault)
		}
	}()
	return cron.ParseStandard(text)
}

// Empty reports whether there are no windows.
func (w Windows) Empty() bool { return len(w.list) == 0 }

// OpenAt reports whether a window is open at a time. A window is open from its start on, and no more at its end.
func (w Windows) OpenAt(t time.Time) bool {
	return w.Empty() || slices.ContainsFunc(w.list, func(one window) bool { return one.openAt(t) })
}

// openAt: a start lies in (t-duration, t].
func (w window) openAt(t time.Time) bool {
	start := w.schedule.Next(t.Add(-w.duration))
	return !start.IsZero() && !start.After(t)
}

// Next returns the first time after t at which the result of OpenAt changes: the next start, or the end if it is open at t. The zero time is never.
func (w Windows) Next(t time.Time) time.Time {
	switch {
	case w.Empty():
		return time.Time{}
	case w.OpenAt(t):
		return w.end(t)
	}
	var next time.Time
	for _, one := range w.list {
		if start := one.schedule.Next(t); !start.IsZero() && (next.IsZero() || start.Before(next)) {
			next = start
		}
	}
	return next
}

// end returns when the windows that are open at t, and those that begin before they end, have ended.
func (w Windows) end(t time.Time) time.Time {
	for range maxOverlaps {
		end := t
		for _, one := range w.list {
			if last := one.endOf(t); last.After(end) {
				end = last
			}
		}
		if !w.OpenAt(end) {
			return end
		}
		t = end
	}
	return time.Time{}
}

// endOf returns the end of a window that is open at t: duration after its first start in (t-duration, t]. A later start is found from there.
func (w window) endOf(t time.Time) time.Time {
	start := w.schedule.Next(t.Add(-w.duration))
	if start.IsZero() || start.After(t) {
		return time.Time{}
	}
	return start.Add(w.duration)
}
