package toolchain

import (
	"runtime"
	"time"
)

// A meter guesses how far the compiler is. It is not safe for concurrent use; display guards it.
//
// The go command names a package when it starts to compile it, never when it is done. So the last few named, as many
// as compilers run at once, count as half done.
type meter struct {
	cost     map[string]float64 // what is not yet known to be done: import path → CPU seconds of the reference machine
	jobs     map[string]plan
	running  []string // named, and perhaps not done; the oldest first
	total    float64
	done     float64
	parallel int
	verb     string // what the compiler does now,
	current  string // and to what
}

func newMeter() *meter {
	return &meter{cost: map[string]float64{}, jobs: map[string]plan{}, parallel: runtime.GOMAXPROCS(0), verb: "starting"}
}

// add takes a job's plan in. Two jobs of one module share packages, which are compiled once.
func (m *meter) add(name string, p plan) {
	m.jobs[name] = p
	for path, seconds := range p.compile {
		if _, twice := m.cost[path]; !twice {
			m.cost[path] = seconds
			m.total += seconds
		}
	}
}

// named takes a line of `go build -v` in, and tells whether it names a package of the plan.
func (m *meter) named(path string) bool {
	if _, ok := m.cost[path]; !ok {
		return false
	}
	m.verb, m.current = "compiling", path
	if m.links(path) {
		m.verb = "compiling and linking"
	}
	m.running = append(m.running, path)
	for len(m.running) > m.parallel {
		m.finish(m.running[0])
		m.running = m.running[1:]
	}
	return true
}

func (m *meter) links(path string) bool {
	for _, p := range m.jobs {
		if p.mains[path] {
			return true
		}
	}
	return false
}

// begin says which job comes now. What go finds in its cache it does not name: a job of programs only is just linked.
func (m *meter) begin(name string) {
	m.verb, m.current = "starting", name
	if p := m.jobs[name]; len(p.compile) == len(p.mains) {
		m.verb = "linking"
	}
}

// built counts all of a job as done, also what go found in its cache after all.
func (m *meter) built(name string) {
	for path := range m.jobs[name].compile {
		m.finish(path)
	}
	m.running = nil
}

func (m *meter) finish(path string) {
	m.done += m.cost[path]
	delete(m.cost, path)
}

// passed is the work done so far, in CPU seconds of the reference machine.
func (m *meter) passed() float64 {
	half := 0.0
	for _, path := range m.running {
		half += m.cost[path] / 2
	}
	return m.done + half
}

// fraction is between 0 and 1.
func (m *meter) fraction() float64 {
	if m.total == 0 {
		return 1
	}
	return min(1, m.passed()/m.total)
}

// left guesses the time to the end. It begins with the speed of the reference machine and trusts what it measures more
// the longer it has measured.
func (m *meter) left(elapsed time.Duration) time.Duration {
	const trust = 20 // seconds of measuring that weigh as much as the reference; an early guess from two packages is noise
	expected := 0.95 * float64(m.parallel)
	speed := (expected*trust + m.passed()) / (trust + elapsed.Seconds())
	return time.Duration((m.total - m.passed()) / speed * float64(time.Second))
}
