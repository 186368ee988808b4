package results

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/loadtest/procfs"
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
		formatNumber(s.Sync.P50), formatNumber(s.Sync.P99), formatNumber(s.Sync.Min), s.Sync.N, procfs.LoadAverage())
}

// NewSetup describes the machine. dir is on the disk that the clusters will use.
func NewSetup(ctx context.Context, command, dir string, seed uint64) (Setup, error) {
	s := Setup{
		Command: command, Began: time.Now(), Seed: seed, Frond: buildinfo.Version(), Go: runtime.Version(),
		Cores: runtime.NumCPU(), CPU: procfs.Field("/proc/cpuinfo", "model name"),
	}
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return s, fmt.Errorf("name the kernel: %w", err)
	}
	s.Kernel = unix.ByteSliceToString(host.Release[:])
	memory, err := procfs.KiB("/proc/meminfo", "MemTotal")
	if err != nil {
		return s, err
	}
	s.MemoryGiB = memory / (1 << 30)
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
		samples = append(samples, Milliseconds(time.Since(began)))
	}
	return Summarize(samples), nil
}
