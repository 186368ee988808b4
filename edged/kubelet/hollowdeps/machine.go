package hollowdeps

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	cadvisorapi "github.com/google/cadvisor/lib/model"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// machine reports the machine to a hollow kubelet without watching cgroups, in place of cAdvisor.
type machine struct {
	node string
	dir  string // the root file system of the node is the one that holds this folder
}

func (*machine) Start() error { return nil }

// MachineInfo reports the real processors and memory.
func (m *machine) MachineInfo(klog.Logger) (*cadvisorapi.MachineInfo, error) {
	memory, err := readMeminfo()
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	return &cadvisorapi.MachineInfo{
		Timestamp: time.Now(), NumCores: runtime.NumCPU(), NumPhysicalCores: runtime.NumCPU(), NumSockets: 1,
		MemoryCapacity: memory["MemTotal"], BootID: strings.TrimSpace(string(boot)), MachineID: m.node, SystemUUID: m.node,
	}, nil
}

// VersionInfo reports the kernel, and the operating system "hollow", so that the node is not mistaken for a real one.
func (*machine) VersionInfo() (*cadvisorapi.VersionInfo, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, fmt.Errorf("ask for kernel version: %w", err)
	}
	return &cadvisorapi.VersionInfo{KernelVersion: unix.ByteSliceToString(name.Release[:]), ContainerOsVersion: "hollow"}, nil
}

// ContainerInfoV2 reports one cgroup for every name: the machine.
func (*machine) ContainerInfoV2(name string, _ cadvisorapi.RequestOptions) (map[string]cadvisorapi.ContainerInfo, error) {
	memory, err := readMeminfo()
	if err != nil {
		return nil, err
	}
	busy, err := readCPUTime()
	if err != nil {
		return nil, err
	}
	used := memory["MemTotal"] - memory["MemAvailable"]
	return map[string]cadvisorapi.ContainerInfo{name: {
		ContainerReference: cadvisorapi.ContainerReference{Name: name},
		Spec:               cadvisorapi.ContainerSpec{HasCpu: true, HasMemory: true, Memory: cadvisorapi.MemorySpec{Limit: memory["MemTotal"]}},
		Stats: []*cadvisorapi.ContainerStats{{
			Timestamp: time.Now(),
			Cpu:       &cadvisorapi.CpuStats{Usage: cadvisorapi.CpuUsage{Total: uint64(busy)}},
			Memory:    &cadvisorapi.MemoryStats{Usage: used, WorkingSet: used, RSS: used},
		}},
	}}, nil
}

// GetRequestedContainersInfo is the source of /metrics/cadvisor, which is empty here.
func (*machine) GetRequestedContainersInfo(string, cadvisorapi.RequestOptions) (map[string]*cadvisorapi.ContainerInfo, error) {
	return nil, nil
}

func (m *machine) RootFsInfo() (cadvisorapi.FsInfo, error) { return m.GetDirFsInfo(m.dir) }

func (m *machine) ImagesFsInfo(context.Context) (cadvisorapi.FsInfo, error) {
	return m.RootFsInfo()
}

func (m *machine) ContainerFsInfo(context.Context) (cadvisorapi.FsInfo, error) {
	return m.RootFsInfo()
}

// GetDirFsInfo reports on the file system that holds a path.
func (*machine) GetDirFsInfo(path string) (cadvisorapi.FsInfo, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return cadvisorapi.FsInfo{}, fmt.Errorf("ask file system of %s: %w", path, err)
	}
	block := uint64(fs.Bsize)
	inodes, free := fs.Files, fs.Ffree
	return cadvisorapi.FsInfo{
		Timestamp: time.Now(), Device: fmt.Sprintf("%x", fs.Fsid.Val), Mountpoint: "/",
		Capacity: fs.Blocks * block, Available: fs.Bavail * block, Usage: (fs.Blocks - fs.Bfree) * block,
		Inodes: &inodes, InodesFree: &free,
	}, nil
}

// procTick is the unit of /proc/stat: USER_HZ, which is 100 on all that Go knows.
const procTick = 10 * time.Millisecond

// readCPUTime returns the time for which all processors together were not idle.
func readCPUTime() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read processor times: %w", err)
	}
	first, _, _ := strings.Cut(string(data), "\n")
	// cpu user nice system idle iowait irq softirq steal, and guests, which user and nice already include.
	var busy time.Duration
	for i, word := range strings.Fields(first) {
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		ticks, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor times: %w", err)
		}
		busy += time.Duration(ticks) * procTick
	}
	return busy, nil
}

// readMeminfo reads /proc/meminfo, in bytes.
func readMeminfo() (map[string]uint64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read memory size: %w", err)
	}
	defer func() { _ = f.Close() }()
	out := map[string]uint64{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		kib, err := strconv.ParseUint(words[1], 10, 64)
		if err == nil {
			out[strings.TrimSuffix(words[0], ":")] = kib << 10
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read memory size: %w", err)
	}
	return out, nil
}
