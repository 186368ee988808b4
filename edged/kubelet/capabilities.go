package kubelet

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm"
)

// maxOpenFiles is the kubelet's own default.
const maxOpenFiles = 1_000_000

// queryCapabilities asks the kernel; a capability that cannot be queried counts as missing.
func queryCapabilities() capabilities {
	var may capabilities
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // version 3 fills two elements
	if err := unix.Capget(&header, &data[0]); err == nil {
		may.sysResource = data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		may.openFiles = int64(min(files.Max, maxOpenFiles))
	}
	return may
}

// makeCgroup creates the cgroup below which pods will run; upstream requires it to exist.
func makeCgroup(root, driver string) error {
	subsystems, err := cm.GetCgroupSubsystems()
	if err != nil {
		return fmt.Errorf("find cgroups: %w", err)
	}
	manager := cm.NewCgroupManager(klog.Background(), subsystems, driver)
	name := cm.NewCgroupName(cm.RootCgroupName, strings.Split(strings.Trim(root, "/"), "/")...)
	if manager.Exists(name) {
		return nil
	}
	if err := manager.Create(klog.Background(), &cm.CgroupConfig{Name: name, ResourceParameters: &cm.ResourceConfig{}}); err != nil {
		return fmt.Errorf("make cgroup %s: %w", root, err)
	}
	return nil
}
