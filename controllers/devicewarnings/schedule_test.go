package devicewarnings_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/frond-edge/frond/controllers/devicewarnings"
)

func TestSchedule_Course(t *testing.T) {
	s := devicewarnings.NewSchedule()
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	warning := func(message string) devicewarnings.Warning {
		return devicewarnings.Warning{Reason: "MapperUnreachable", Message: message, Hold: 5 * time.Minute}
	}
	for _, step := range []struct {
		after   time.Duration
		message string
		want    string
	}{
		{0, "a", "quiet"},
		{4 * time.Minute, "a", "quiet"},
		{5 * time.Minute, "a", "due"},
		{5*time.Minute + time.Second, "a", "quiet"},
		{5*time.Minute + 2*time.Second, "b", "quiet"}, // changes too fast
		{7 * time.Minute, "b", "due"},
		{66 * time.Minute, "b", "quiet"},
		{68 * time.Minute, "b", "due"},
	} {
		if got := s.Due("gw", "u", warning(step.message), began.Add(step.after)); got != step.want {
			t.Errorf("after %s: %s, want %s", step.after, got, step.want)
		}
	}
	s.Keep("u", "another", "gw") // it is over, and begins anew
	if got := s.Due("gw", "u", warning("b"), began.Add(69*time.Minute)); got != "quiet" {
		t.Errorf("a new one is %s", got)
	}
}

// A gateway that makes a warning about each of a thousand devices, with another text each time, uses up no other gateway's.
func TestSchedule_BudgetOfANode(t *testing.T) {
	s := devicewarnings.NewSchedule()
	at := time.Now()
	recorded := 0
	for round := range 60 { // ten minutes
		for i := range 1000 {
			w := devicewarnings.Warning{Reason: "ReportRefused", Message: fmt.Sprint(round)}
			if s.Due("stolen", fmt.Sprint("device-", i), w, at) == "due" {
				recorded++
			}
		}
		if got := s.Due("gw", fmt.Sprint("mine-", round), devicewarnings.Warning{Reason: "ReportRefused"}, at); got != "due" && round < 20 {
			t.Fatalf("round %d: the warning about another gateway is %s", round, got)
		}
		at = at.Add(10 * time.Second)
	}
	if recorded > 20+40 {
		t.Errorf("%d Events about the devices of one gateway in ten minutes", recorded)
	}
	if got := s.Due("stolen", "device-0", devicewarnings.Warning{Reason: "MapperRefused"}, at.Add(time.Minute)); got != "due" {
		t.Errorf("later it is %s", got)
	}
}

// A warning that may be no fault is recorded once, also over absences of its gateway.
func TestSchedule_Once(t *testing.T) {
	s := devicewarnings.NewSchedule()
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	w := devicewarnings.Warning{Reason: "DeviceNotServed", Message: "a", Hold: 10 * time.Minute, Once: true}
	for _, step := range []struct {
		after time.Duration
		away  bool
		want  string
	}{
		{0, false, "quiet"},
		{5 * time.Minute, true, ""}, // it was not recorded yet: it begins anew when the gateway is back
		{11 * time.Minute, false, "quiet"},
		{21 * time.Minute, false, "due"},
		{2 * time.Hour, false, "quiet"},
		{3 * time.Hour, true, ""},
		{4 * time.Hour, false, "quiet"},
		{5 * time.Hour, false, "quiet"},
	} {
		if step.away {
			s.KeepAway("u", "gw")
			continue
		}
		if got := s.Due("gw", "u", w, began.Add(step.after)); got != step.want {
			t.Errorf("after %s: %s, want %s", step.after, got, step.want)
		}
	}
	s.Keep("u", "another", "gw") // the device has reported
	if got := s.Due("gw", "u", w, began.Add(6*time.Hour)) + s.Due("gw", "u", w, began.Add(7*time.Hour)); got != "quietdue" {
		t.Errorf("a new one is %s", got)
	}
}
