package progress_test

import (
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/toolchain/progress"
)

func TestMeter_LastNamedCountsHalf(t *testing.T) {
	m := newMeter(2, map[string]float64{"a": 10, "b": 20, "c": 30, "d": 40})
	for i, step := range []struct {
		line  string
		known bool
		want  float64
	}{
		{"a", true, 0.05},
		{"# a", false, 0.05},
		{"b", true, 0.15},
		{"c", true, 0.35}, // a is done, b and c run
		{"a", false, 0.35},
		{"d", true, 0.65},
	} {
		if known := m.ObservePackage(step.line); known != step.known {
			t.Errorf("step %d, %q: known %v, want %v", i, step.line, known, step.known)
		}
		if got := m.Fraction(); got < step.want-1e-9 || got > step.want+1e-9 {
			t.Errorf("step %d, %q: fraction %v, want %v", i, step.line, got, step.want)
		}
	}
	m.FinishJob("job")
	if got := m.Fraction(); got < 1-1e-9 {
		t.Errorf("built: fraction %v, want 1", got)
	}
	if got := m.TimeLeft(time.Minute); got > time.Millisecond {
		t.Errorf("built: %v left", got)
	}
}

func TestMeter_LearnsTheSpeed(t *testing.T) {
	slow, fast := newMeter(1, unitCosts(100)), newMeter(1, unitCosts(100))
	before := slow.TimeLeft(0)
	if before < 90*time.Second || before > 120*time.Second {
		t.Errorf("100 CPU seconds on one core: %v before the start", before)
	}
	for i := range 50 {
		slow.ObservePackage(packagePath(i))
		fast.ObservePackage(packagePath(i))
	}
	late, soon := slow.TimeLeft(200*time.Second), fast.TimeLeft(25*time.Second)
	if late < 150*time.Second || late > 250*time.Second { // half took 200 s
		t.Errorf("on a slow machine %v left", late)
	}
	if soon > 40*time.Second { // half took 25 s
		t.Errorf("on a fast machine %v left", soon)
	}
}

func unitCosts(n int) map[string]float64 {
	all := map[string]float64{}
	for i := range n {
		all[packagePath(i)] = 1
	}
	return all
}

func packagePath(i int) string { return "example.com/" + strings.Repeat("p", i+1) }

func TestMeter_NothingToDo(t *testing.T) {
	if m := newMeter(2, nil); m.Fraction() != 1 || m.TimeLeft(0) != 0 {
		t.Errorf("fraction %v, left %v", m.Fraction(), m.TimeLeft(0))
	}
}

func TestRoundDuration(t *testing.T) {
	for give, want := range map[time.Duration]string{
		3 * time.Second: "a few seconds", 44 * time.Second: "about 40 s", 118 * time.Second: "about 120 s", 9*time.Minute + 40*time.Second: "about 10 min",
	} {
		if got := progress.RoundDuration(give); got != want {
			t.Errorf("%v: %q, want %q", give, got, want)
		}
	}
}

// newMeter returns the meter of one job.
func newMeter(parallel int, compile map[string]float64) *progress.Meter {
	m := progress.NewMeter()
	m.Parallel = parallel
	m.AddPlan("job", progress.Plan{Compile: compile})
	return m
}
