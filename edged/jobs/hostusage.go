package jobs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/frond-edge/frond/api/operations"
)

// cpuSample is how long the use of the processors is measured.
const cpuSample = 500 * time.Millisecond

// LinuxHost is the Host that edgecore runs on.
type LinuxHost struct {
	// ImageFolder returns a folder of the file system that holds the images.
	ImageFolder func(ctx context.Context) (string, error)
}

// Usage implements Host.
func (h LinuxHost) Usage(ctx context.Context, item operations.CheckItem) (float64, error) {
	switch item {
	case operations.CheckCPU:
		return cpuUsage(ctx)
	case operations.CheckMemory:
		return memoryUsage()
	case operations.CheckDisk:
		folder, err := h.ImageFolder(ctx)
		if err != nil {
			return 0, err
		}
		return diskUsage(folder)
	}
	return 0, fmt.Errorf("check item %.20q is not known", item)
}

// diskUsage returns the percentage of a file system that is used, of what others than root may use.
func diskUsage(folder string) (float64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return 0, fmt.Errorf("file system of %s: %w", folder, err)
	}
	used := s.Blocks - s.Bfree
	if used+s.Bavail == 0 {
		return 0, fmt.Errorf("file system of %s has no size", folder)
	}
	return 100 * float64(used) / float64(used+s.Bavail), nil
}

// readFields returns the numbers of the lines of a file of /proc, by the first word of each line.
func readFields(path string) (map[string][]float64, error) {
	file, err := os.Open(path) //nolint:gosec // a constant
	if err != nil {
		return nil, fmt.Errorf("usage: %w", err)
	}
	defer func() { _ = file.Close() }()
	return parseFields(file)
}

func parseFields(text io.Reader) (map[string][]float64, error) {
	found := map[string][]float64{}
	for lines := bufio.NewScanner(io.LimitReader(text, 1<<20)); ; {
		if !lines.Scan() {
			return found, lines.Err()
		}
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		for _, word := range words[1:] {
			if number, err := strconv.ParseFloat(word, 64); err == nil {
				found[words[0]] = append(found[words[0]], number)
			}
		}
	}
}

func memoryUsage() (float64, error) {
	fields, err := readFields("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	total, available := fields["MemTotal:"], fields["MemAvailable:"]
	if len(total) == 0 || len(available) == 0 || total[0] == 0 {
		return 0, errors.New("memory: /proc/meminfo does not say")
	}
	return 100 * (1 - available[0]/total[0]), nil
}

// cpuTimes returns the time of all processors since the start, and the part of it in which they were idle.
func cpuTimes() (total, idle float64, err error) {
	fields, err := readFields("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	times := fields["cpu"] // user nice system idle iowait …
	if len(times) < 5 {
		return 0, 0, errors.New("cpu: /proc/stat does not say")
	}
	for _, t := range times[:min(len(times), 8)] { // the times of guests are part of user and nice
		total += t
	}
	return total, times[3] + times[4], nil
}

func cpuUsage(ctx context.Context) (float64, error) {
	total, idle, err := cpuTimes()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(cpuSample):
	}
	laterTotal, laterIdle, err := cpuTimes()
	if err != nil {
		return 0, err
	}
	if laterTotal <= total {
		return 0, errors.New("cpu: no time has passed")
	}
	return 100 * (1 - (laterIdle-idle)/(laterTotal-total)), nil
}
