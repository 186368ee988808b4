package toolchain

import (
	"runtime"
	"time"
)

// A meter estimates the compiler's progress. It is not safe for concurrent use; progressDisplay guards it.
//
// The go command names a package when it starts to compile it, never when it is done. So the most recently named packages, as
// many as compilers run at once, count as half done.
type meter struct {
	cost     map[string]float64 // packages not yet known to be done: import path → CPU seconds of the reference machine
	jobs     map[string]buildPlan
	running  []string // named, and perhaps not done; the oldest first
	total    float64
	done     float64
	parallel int
	verb     string // what the compiler does now,
	current  string // and to what
}

func newMeter() *meter {
	return &meter{cost: map[string]float64{}, jobs: map[string]buildPlan{}, parallel: runtime.GOMAXPROCS(0), verb: "starting"}
}

// addPlan adds a job's plan. Two jobs of one module share packages, which are compiled once.
func (m *meter) addPlan(name string, p buildPlan) {
	m.jobs[name] = p
	for path, seconds := range p.compile {
		if _, twice := m.cost[path]; !twice {
			m.cost[path] = seconds
			m.total += seconds
		}
	}
}

// observePackage handles a line of `go build -v`, and reports whether it names a package of the plan.
func (m *meter) observePackage(path string) bool {
	if _, ok := m.cost[path]; !ok {
		return false
	}
	m.verb, m.current = "compiling", path
	if m.isLinked(path) {
		m.verb = "compiling and linking"
	}
	m.running = append(m.running, path)
	for len(m.running) > m.parallel {
		m.finishPackage(m.running[0])
		m.running = m.running[1:]
	}
	return true
}

func (m *meter) isLinked(path string) bool {
	for _, p := range m.jobs {
		if p.mains[path] {
			return true
		}
	}
	return false
}

// beginJob starts a job. The go command does not name packages in its cache: a job of programs only is just linked.
func (m *meter) beginJob(name string) {
	m.verb, m.current = "starting", name
	if p := m.jobs[name]; len(p.compile) == len(p.mains) {
		m.verb = "linking"
	}
}

// finishJob counts a whole job as done, also the packages that the go command found in its cache.
func (m *meter) finishJob(name string) {
	for path := range m.jobs[name].compile {
		m.finishPackage(path)
	}
	m.running = nil
}

func (m *meter) finishPackage(path string) {
	m.done += m.cost[path]
	delete(m.cost, path)
}

// workDone returns the work done so far, in CPU seconds of the reference machine.
func (m *meter) workDone() float64 {
	half := 0.0
	for _, path := range m.running {
		half += m.cost[path] / 2
	}
	return m.done + half
}

// fraction returns the progress, between 0 and 1.
func (m *meter) fraction() float64 {
	if m.total == 0 {
		return 1
	}
	return min(1, m.workDone()/m.total)
}

// timeLeft estimates the remaining time. It begins with the speed of the reference machine and gives its own measurement more weight
// the longer it lasts.
func (m *meter) timeLeft(elapsed time.Duration) time.Duration {
	const trust = 20 // seconds of measurement with the same weight as the reference; an early estimate from two packages is noise
	expected := 0.95 * float64(m.parallel)
	speed := (expected*trust + m.workDone()) / (trust + elapsed.Seconds())
	return time.Duration((m.total - m.workDone()) / speed * float64(time.Second))
}
