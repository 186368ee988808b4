package loadtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The groups of processes whose CPU time is reported separately. Others is the rest of the machine.
const (
	cpuKubernetes = "kubernetes"
	cpuHub        = "hub"
	cpuCloud      = "cloudcore"
	cpuEdge       = "edgecore"
	cpuWan        = "wan"
	cpuBench      = "loadtest"
	cpuOthers     = "others"
)

// cpuGroups lists the groups in the order of the report.
func cpuGroups() []string {
	return []string{cpuKubernetes, cpuHub, cpuCloud, cpuEdge, cpuWan, cpuBench, cpuOthers}
}

// tick is the unit of CPU times in /proc on every Linux that Go runs on.
const tick = time.Second / 100

// cpuTimes is the CPU time used so far by each group.
type cpuTimes map[string]time.Duration

// readCPU reads the CPU times. A process that has ended counts as 0, so a round with a restart shows a negative value.
func readCPU(w *Environment) cpuTimes {
	spec, now := w.cluster.Spec(), cpuTimes{}
	parts := map[string]string{
		"etcd": cpuKubernetes, "apiserver": cpuKubernetes, "controller-manager": cpuKubernetes, "scheduler": cpuKubernetes, "wan": cpuWan,
	}
	for i := range spec.Hubs {
		parts["hub-"+strconv.Itoa(i+1)] = cpuHub
	}
	for i := range spec.Cloudcores {
		parts["cloudcore-"+strconv.Itoa(i+1)] = cpuCloud
	}
	for _, edge := range w.edgeNames() {
		parts[edge] = cpuEdge
	}
	known := time.Duration(0)
	for part, group := range parts {
		used := processCPU(w.cluster.PID(part))
		now[group] += used
		known += used
	}
	now[cpuBench] = processCPU(os.Getpid())
	now[cpuOthers] = machineCPU() - known - now[cpuBench]
	return now
}

// processCPU returns utime and stime, which follow the name in parentheses.
func processCPU(pid int) time.Duration {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	return parseTicks(fields[11]) + parseTicks(fields[12])
}

// machineCPU returns the busy time of all cores: user, nice, system, irq and softirq.
func machineCPU() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(first)
	if len(fields) < 8 {
		return 0
	}
	return parseTicks(fields[1]) + parseTicks(fields[2]) + parseTicks(fields[3]) + parseTicks(fields[6]) + parseTicks(fields[7])
}

func parseTicks(s string) time.Duration {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0
	}
	return time.Duration(n) * tick
}

// recordCPU records the CPU time of each group per delivery: two cores give 2,000,000 µs a second.
func recordCPU(w *Environment, before, after cpuTimes, deliveries int) {
	for _, group := range cpuGroups() {
		w.record(measure{text: "  CPU per delivery: " + group, unit: unitCPU}, float64((after[group]-before[group])/time.Microsecond)/float64(deliveries))
	}
}
