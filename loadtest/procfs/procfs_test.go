package procfs_test

import (
	"os"
	"testing"

	"github.com/frond-edge/frond/loadtest/procfs"
)

func TestReadMemory_OwnProcess(t *testing.T) {
	m, err := procfs.ReadMemory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if m.Anonymous <= 0 || m.RSS < m.Anonymous {
		t.Errorf("resident %.0f bytes, of them anonymous %.0f", m.RSS, m.Anonymous)
	}
	if _, err := procfs.ReadMemory(-1); err == nil {
		t.Error("the memory of no process was read")
	}
}

func TestCPU_OwnProcess(t *testing.T) {
	own := procfs.CPU(os.Getpid())
	for range 100_000 {
		_ = procfs.Field("/proc/self/status", "VmRSS")
		if own > 0 {
			break
		}
		own = procfs.CPU(os.Getpid())
	}
	if machine := procfs.MachineCPU(); own <= 0 || machine < own {
		t.Errorf("this process used %s, the machine %s", own, machine)
	}
	if gone := procfs.CPU(-1); gone != 0 {
		t.Errorf("no process used %s", gone)
	}
	if load := procfs.LoadAverage(); load < 0 {
		t.Errorf("load average %v", load)
	}
}
