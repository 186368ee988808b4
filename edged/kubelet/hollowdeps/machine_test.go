package hollowdeps

import (
	"testing"

	"k8s.io/klog/v2"
)

func TestMachine_ReportsThisMachine(t *testing.T) {
	m := &machine{node: "edge-1", dir: t.TempDir()}
	info, err := m.MachineInfo(klog.Background())
	if err != nil || info.NumCores == 0 || info.MemoryCapacity == 0 || info.BootID == "" {
		t.Errorf("machine: %+v, %v", info, err)
	}
	disk, err := m.RootFsInfo()
	if err != nil || disk.Capacity == 0 || disk.Available > disk.Capacity {
		t.Errorf("disk: %+v, %v", disk, err)
	}
}
