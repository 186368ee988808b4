// Package progress estimates how far a build is, and shows it.
package progress

import (
	"runtime"
	"time"
)

// A Meter estimates the compiler's progress. It is not safe for concurrent use; Display guards it.
//
// The go command names a package when it starts to compile it, never when it is done. So the most recently named packages, as
// many as compilers run at once, count as half done.
type Meter struct {
	cost     map[string]float64 // packages not yet known to be done: import path → CPU seconds of the reference machine
	jobs     map[string]Plan
	running  []string // named, and perhaps not done; the oldest first
	Total    float64
	done     float64
	Parallel int
	verb     string // what the compiler does now,
	current  string // and to what
}

// NewMeter creates a Meter without jobs.
func NewMeter() *Meter {
	return &Meter{cost: map[string]float64{}, jobs: map[string]Plan{}, Parallel: runtime.GOMAXPROCS(0), verb: "starting"}
}

// AddPlan adds a job's plan. Two jobs of one module share packages, which are compiled once.
func (m *Meter) AddPlan(name string, p Plan) {
	m.jobs[name] = p
	for path, seconds := range p.Compile {
		if _, twice := m.cost[path]; !twice {
			m.cost[path] = seconds
			m.Total += seconds
		}
	}
}

// ObservePackage handles a line of `go build -v`, and reports whether it names a package of the plan.
func (m *Meter) ObservePackage(path string) bool {
	if _, ok := m.cost[path]; !ok {
		return false
	}
	m.verb, m.current = "compiling", path
	if m.isLinked(path) {
		m.verb = "compiling and linking"
	}
	m.running = append(m.running, path)
	for len(m.running) > m.Parallel {
		m.finishPackage(m.running[0])
		m.running = m.running[1:]
	}
	return true
}

func (m *Meter) isLinked(path string) bool {
	for _, p := range m.jobs {
		if p.Mains[path] {
			return true
		}
	}
	return false
}

// beginJob starts a job. The go command does not name packages in its cache: a job of programs only is just linked.
func (m *Meter) beginJob(name string) {
	m.verb, m.current = "starting", name
	if p := m.jobs[name]; len(p.Compile) == len(p.Mains) {
		m.verb = "linking"
	}
}

// FinishJob counts a whole job as done, also the packages that the go command found in its cache.
func (m *Meter) FinishJob(name string) {
	for path := range m.jobs[name].Compile {
		m.finishPackage(path)
	}
	m.running = nil
}

func (m *Meter) finishPackage(path string) {
	m.done += m.cost[path]
	delete(m.cost, path)
}

// workDone returns the work done so far, in CPU seconds of the reference machine.
func (m *Meter) workDone() float64 {
	half := 0.0
	for _, path := range m.running {
		half += m.cost[path] / 2
	}
	return m.done + half
}

// Fraction returns the progress, between 0 and 1.
func (m *Meter) Fraction() float64 {
	if m.Total == 0 {
		return 1
	}
	return min(1, m.workDone()/m.Total)
}

// TimeLeft estimates the remaining time. It begins with the speed of the reference machine and gives its own measurement more weight
// the longer it lasts.
func (m *Meter) TimeLeft(elapsed time.Duration) time.Duration {
	const trust = 20 // seconds of measurement with the same weight as the reference; an early estimate from two packages is noise
	expected := 0.95 * float64(m.Parallel)
	speed := (expected*trust + m.workDone()) / (trust + elapsed.Seconds())
	return time.Duration((m.Total - m.workDone()) / speed * float64(time.Second))
}

// A Plan is the remaining compile work of a job, in CPU seconds of the machine on which the rates were measured.
type Plan struct {
	Compile map[string]float64 // import path → seconds; a program's own package includes its link
	Mains   map[string]bool    // the packages of compile that are linked
}
