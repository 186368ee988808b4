package toolchain_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/toolchain"
)

func TestMeter_LastNamedCountsHalf(t *testing.T) {
	m := toolchain.NewMeter(2, map[string]float64{"a": 10, "b": 20, "c": 30, "d": 40})
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
	m.FinishJob()
	if got := m.Fraction(); got < 1-1e-9 {
		t.Errorf("built: fraction %v, want 1", got)
	}
	if got := m.TimeLeft(time.Minute); got > time.Millisecond {
		t.Errorf("built: %v left", got)
	}
}

func TestMeter_LearnsTheSpeed(t *testing.T) {
	slow, fast := toolchain.NewMeter(1, unitCosts(100)), toolchain.NewMeter(1, unitCosts(100))
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
	if m := toolchain.NewMeter(2, nil); m.Fraction() != 1 || m.TimeLeft(0) != 0 {
		t.Errorf("fraction %v, left %v", m.Fraction(), m.TimeLeft(0))
	}
}

func TestEstimateCosts(t *testing.T) {
	got := toolchain.EstimateCosts([]toolchain.Listed{
		{ImportPath: "cached", GoFiles: []string{"a.go"}, DepOnly: true},
		{ImportPath: "small", GoFiles: []string{"a.go"}, Stale: true, DepOnly: true},
		{ImportPath: "large", GoFiles: []string{"a.go", "b.go"}, CgoFiles: []string{"c.go"}, Stale: true, DepOnly: true},
		{ImportPath: "library's main", Name: "main", GoFiles: []string{"a.go"}, DepOnly: true},
		{ImportPath: "program", Name: "main", GoFiles: []string{"a.go"}}, // cached, but to be linked
	}, 1e6)
	if len(got) != 3 || got["small"] <= 0 || got["large"] <= 2*got["small"] || got["program"] <= 0 {
		t.Errorf("got %v", got)
	}
}

func TestLineWriter_WritesWholeLines(t *testing.T) {
	var got []string
	w := toolchain.NewLineWriter(func(s string) { got = append(got, s) })
	for _, part := range []string{"k8s.io/a", "pi\nfmt\n", "", "os\r\nhalf"} {
		if n, err := io.WriteString(w, part); n != len(part) || err != nil {
			t.Fatalf("write %q: %d, %v", part, n, err)
		}
	}
	if diff := cmp.Diff([]string{"k8s.io/api", "fmt", "os"}, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestRoundDuration(t *testing.T) {
	for give, want := range map[time.Duration]string{
		3 * time.Second: "a few seconds", 44 * time.Second: "about 40 s", 118 * time.Second: "about 120 s", 9*time.Minute + 40*time.Second: "about 10 min",
	} {
		if got := toolchain.RoundDuration(give); got != want {
			t.Errorf("%v: %q, want %q", give, got, want)
		}
	}
}
