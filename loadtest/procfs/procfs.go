// Package procfs reads the CPU time, the memory and the load of processes and of the machine from /proc.
package procfs

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc on every Linux that Go runs on.
const tick = time.Second / 100

// Memory is the resident memory of one process in bytes.
type Memory struct{ RSS, Anonymous float64 }

// ReadMemory reads the memory of a running process.
func ReadMemory(pid int) (m Memory, err error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	if m.RSS, err = KiB(path, "VmRSS"); err != nil {
		return m, err
	}
	m.Anonymous, err = KiB(path, "RssAnon")
	return m, err
}

// KiB reads a field that is given in kB, and returns bytes.
func KiB(path, name string) (float64, error) {
	kib, err := strconv.ParseFloat(strings.TrimSuffix(Field(path, name), " kB"), 64)
	if err != nil {
		return 0, fmt.Errorf("read %s of %s: %w", name, path, err)
	}
	return kib * 1024, nil
}

// Field returns the first value of a name in a file of "name: value" lines, "" if it is missing.
func Field(path, name string) string {
	for line := range strings.Lines(readFile(path)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// CPU returns the CPU time that a process has used, 0 if it has ended: utime and stime, which follow the name in parentheses.
func CPU(pid int) time.Duration {
	text := readFile(fmt.Sprintf("/proc/%d/stat", pid))
	return sumTicks(text[strings.LastIndexByte(text, ')')+1:], 11, 12)
}

// MachineCPU returns the busy time of all cores: user, nice, system, irq and softirq.
func MachineCPU() time.Duration { return sumTicks(readFile("/proc/stat"), 1, 2, 3, 6, 7) }

// sumTicks adds columns of the first line.
func sumTicks(text string, columns ...int) (sum time.Duration) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	for _, i := range columns {
		if i < len(fields) {
			n, _ := strconv.ParseInt(fields[i], 10, 64) // 0 means unknown
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// LoadAverage returns the load average of the last minute, -1 if it is not known.
func LoadAverage() float64 {
	first, _, _ := strings.Cut(readFile("/proc/loadavg"), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return -1
	}
	return load
}

// readFile returns "" for a file that cannot be read: that of a process which has ended.
func readFile(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(text)
}
