package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/buildinfo"
)

// Setup describes the conditions of a measurement.
type Setup struct {
	Command    string    `json:"command"`
	Began      time.Time `json:"began"`
	Seed       uint64    `json:"seed"`
	Frond      string    `json:"frond"`
	Go         string    `json:"go"`
	Kubernetes string    `json:"kubernetes,omitempty"`
	NATS       string    `json:"nats,omitempty"`
	CPU        string    `json:"cpu"`
	Cores      int       `json:"cores"`
	MemoryGiB  float64   `json:"memoryGiB"`
	Kernel     string    `json:"kernel"`
	// Sync is the time to sync an append of 500 bytes to the disk, in milliseconds: each delivery waits for several.
	Sync Summary `json:"sync"`
}

// Print writes the setup as text.
func (s Setup) Print(w io.Writer) {
	versions := "frond " + s.Frond + ", " + s.Go
	if s.Kubernetes != "" {
		versions += ", Kubernetes " + s.Kubernetes + ", nats-server " + s.NATS
	}
	fmt.Fprintf(w, "command     %s\nbegan       %s\nseed        %d\nversions    %s\nmachine     %d × %s, %.0f GiB, Linux %s\n",
		s.Command, s.Began.UTC().Format(time.RFC3339), s.Seed, versions, s.Cores, s.CPU, s.MemoryGiB, s.Kernel)
	fmt.Fprintf(w, "disk sync   p50 %s ms, p99 %s ms, min %s ms, of %d\nload        %.2f\n\n",
		formatNumber(s.Sync.P50), formatNumber(s.Sync.P99), formatNumber(s.Sync.Min), s.Sync.N, loadAverage())
}

// newSetup describes the machine. dir is on the disk that the clusters will use.
func newSetup(ctx context.Context, command, dir string, seed uint64) (Setup, error) {
	s := Setup{
		Command: command, Began: time.Now(), Seed: seed, Frond: buildinfo.Version(), Go: runtime.Version(),
		Cores: runtime.NumCPU(), CPU: procField("/proc/cpuinfo", "model name"),
	}
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return s, fmt.Errorf("name the kernel: %w", err)
	}
	s.Kernel = unix.ByteSliceToString(host.Release[:])
	if total, _, ok := strings.Cut(procField("/proc/meminfo", "MemTotal"), " "); ok {
		kib, _ := strconv.ParseFloat(total, 64) // 0 means unknown
		s.MemoryGiB = kib / (1 << 20)
	}
	var err error
	s.Sync, err = measureSync(ctx, dir)
	return s, err
}

// syncSamples is enough for a p99.
const syncSamples = 300

// measureSync appends and syncs as a store does.
func measureSync(ctx context.Context, dir string) (s Summary, err error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return s, fmt.Errorf("measure sync: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 500)
	samples := make([]float64, 0, syncSamples)
	for range syncSamples {
		if ctx.Err() != nil {
			return s, ctx.Err()
		}
		if _, err := f.Write(block); err != nil {
			return s, fmt.Errorf("measure sync: %w", err)
		}
		began := time.Now()
		if err := f.Sync(); err != nil {
			return s, fmt.Errorf("measure sync: %w", err)
		}
		samples = append(samples, milliseconds(time.Since(began)))
	}
	return Summarize(samples), nil
}

// loadAverage returns the load average of the last minute, -1 if it is not known.
func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return -1
	}
	first, _, _ := strings.Cut(string(text), " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return -1
	}
	return load
}

// memory is the resident memory of one process in bytes.
type memory struct{ rss, anonymous int64 }

func readMemory(pid int) (memory, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "status")
	rss, err := readKiB(path, "VmRSS")
	if err != nil {
		return memory{}, err
	}
	anonymous, err := readKiB(path, "RssAnon")
	return memory{rss: rss, anonymous: anonymous}, err
}

func readKiB(path, name string) (int64, error) {
	value, _, _ := strings.Cut(procField(path, name), " ")
	kib, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read %s of %s: %w", name, path, err)
	}
	return kib << 10, nil
}

// procField returns the first value of a name in a file of "name: value" lines, "" if it is missing.
func procField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
