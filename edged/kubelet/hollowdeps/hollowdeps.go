// Package hollowdeps replaces what a kubelet needs privileges or real containers for, so that one without either runs on any machine.
package hollowdeps

import (
	"context"
	"os"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	probetest "k8s.io/kubernetes/pkg/kubelet/prober/testing"
	"k8s.io/kubernetes/pkg/util/oom"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

// Apply replaces the dependencies that need privileges or containers with upstream's own fakes (as kubemark does). Files are real:
// ConfigMaps, Secrets and tokens are written below dir, the kubelet's folder, as on any node, but not on a tmpfs.
func Apply(deps *kubelet.Dependencies, node, dir string) {
	here := &machine{node: node, dir: dir}
	deps.CAdvisorInterface = here
	deps.ContainerManager = containers{ContainerManager: cm.NewStubContainerManager(), machine: here}
	deps.Mounter = mounter{mount.NewFakeMounter(nil)}
	deps.Subpather = &subpath.FakeSubpath{}
	deps.HostUtil = host{hostutil.NewHostUtil()}
	deps.OOMAdjuster = oom.NewFakeOOMAdjuster()
	deps.ProbeManager = probes{}
	deps.OSInterface = osInterface{}
}

// probes reports a container as started and ready as soon as it runs: a hollow pod serves no port. (Upstream's fake
// reports containers as ready that have ended.)
type probes struct{ probetest.FakeManager }

func (probes) UpdatePodStatus(_ context.Context, _ *corev1.Pod, status *corev1.PodStatus) {
	for i := range status.ContainerStatuses {
		c := &status.ContainerStatuses[i]
		c.Ready = c.State.Running != nil
		c.Started = new(c.Ready)
	}
	for i := range status.InitContainerStatuses {
		c := &status.InitContainerStatuses[i]
		c.Started = new(c.State.Running != nil)
		c.Ready = *c.Started || (c.State.Terminated != nil && c.State.Terminated.ExitCode == 0)
	}
}

// mounter keeps mounts in memory. Upstream's fake also stores a log of each action without limit, which a node cannot afford.
type mounter struct{ *mount.FakeMounter }

func (m mounter) Unmount(target string) error {
	defer m.ResetLog()
	return m.FakeMounter.Unmount(target)
}

// host reads the real machine, but shares no mounts.
type host struct{ hostutil.HostUtils }

func (host) MakeRShared(string) error { return nil }

// osInterface does not write /var/log/containers; the kubelet fills it with links that only log collectors read.
type osInterface struct{ kubecontainer.RealOS }

func isContainerLogs(name string) bool {
	return name == kubelet.DefaultContainerLogsDir || path.Dir(name) == kubelet.DefaultContainerLogsDir
}

func (o osInterface) MkdirAll(name string, mode os.FileMode) error {
	if isContainerLogs(name) {
		return nil
	}
	return o.RealOS.MkdirAll(name, mode)
}

func (o osInterface) Symlink(from, to string) error {
	if isContainerLogs(to) {
		return nil
	}
	return o.RealOS.Symlink(from, to)
}

func (o osInterface) Glob(pattern string) ([]string, error) {
	if strings.HasPrefix(pattern, kubelet.DefaultContainerLogsDir+"/") {
		return nil, nil
	}
	return o.RealOS.Glob(pattern)
}

// containers is upstream's stub with a disk, and with the machine's values for the cgroup of all pods.
type containers struct {
	cm.ContainerManager
	machine *machine
}

func (containers) GetPodCgroupRoot() string { return "/" }

func (c containers) NewPodContainerManager() cm.PodContainerManager {
	return podContainers{c.ContainerManager.NewPodContainerManager()}
}

// podContainers returns "no limits" where the stub makes the kubelet log an error for each status of each pod.
type podContainers struct{ cm.PodContainerManager }

func (podContainers) GetPodCgroupConfig(*corev1.Pod, corev1.ResourceName) (*cm.ResourceConfig, error) {
	return nil, nil //nolint:nilnil // upstream reads nil as "no limits"
}

func (c containers) GetCapacity(log klog.Logger, _ bool) corev1.ResourceList {
	disk, err := c.machine.RootFsInfo()
	if err != nil {
		log.Error(err, "No capacity of local storage")
		return corev1.ResourceList{}
	}
	return corev1.ResourceList{corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(disk.Capacity), resource.BinarySI)}
}
