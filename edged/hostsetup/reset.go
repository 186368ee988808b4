package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/frond-edge/frond/deploy/systemd"
)

// Stop makes systemd stop and disable edgecore. Its pods keep running.
func (m Machine) Stop(ctx context.Context) error {
	if _, err := os.Stat(m.unitPath()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if HasSystemd() {
		if err := systemctl(ctx, "disable", "--now", systemd.Name); err != nil {
			return err
		}
	}
	if err := os.Remove(m.unitPath()); err != nil {
		return fmt.Errorf("remove the unit: %w", err)
	}
	return nil
}

// podLabel is on each sandbox that a kubelet made.
const podLabel = "io.kubernetes.pod.uid"

// EndPods stops and removes all pods of the container runtime, and returns their number.
func (m Machine) EndPods(ctx context.Context) (int, error) {
	if m.Runtime == Hollow || m.Runtime == "" {
		return 0, nil
	}
	conn, err := dialRuntime(m.Runtime)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // no call is in progress
	client := runtimeapi.NewRuntimeServiceClient(conn)
	list, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return 0, fmt.Errorf("list pods of %s: %w", m.Runtime, err)
	}
	n := 0
	var faults []error
	for _, sandbox := range list.GetItems() {
		if sandbox.GetLabels()[podLabel] == "" {
			continue
		}
		if _, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox.GetId()}); err != nil {
			faults = append(faults, fmt.Errorf("stop pod %s: %w", sandbox.GetMetadata().GetName(), err))
			continue
		}
		if _, err := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox.GetId()}); err != nil {
			faults = append(faults, fmt.Errorf("remove pod %s: %w", sandbox.GetMetadata().GetName(), err))
			continue
		}
		n++
	}
	return n, errors.Join(faults...)
}

// Remove removes configuration, identity and store, and unmounts the pods' volumes below.
func (m Machine) Remove() error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return fmt.Errorf("find mounts: %w", err)
	}
	var below []string
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], filepath.Clean(m.Dir)+"/") {
			below = append(below, strings.ReplaceAll(fields[1], `\040`, " "))
		}
	}
	slices.Sort(below)
	for _, mount := range slices.Backward(below) {
		if err := unix.Unmount(mount, 0); err != nil {
			return fmt.Errorf("unmount %s, which a pod may still use: %w", mount, err)
		}
	}
	// A folder that is a mount point, such as a data partition, stays, empty.
	if err := os.RemoveAll(m.Dir); err != nil && (!errors.Is(err, unix.EBUSY) || !isEmpty(m.Dir)) {
		return fmt.Errorf("remove %s: %w", m.Dir, err)
	}
	if err := os.Remove(m.Config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the configuration: %w", err)
	}
	return nil
}

func isEmpty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}
