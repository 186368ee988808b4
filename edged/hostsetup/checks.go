package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Check is one requirement of a gateway.
type Check struct {
	// ID is its name for --ignore-preflight-errors.
	ID string
	// Hint says what to do when the check fails.
	Hint string
	Run  func(ctx context.Context) error
}

const (
	// minDiskBytes holds images, logs and the leaf's 1 GiB.
	minDiskBytes = 2 << 30
	// runtimeTimeout bounds one request to the runtime.
	runtimeTimeout = 5 * time.Second
)

// Checks returns the requirements of a gateway on a machine. cloud is an additional one: the hub is reachable and the right one.
func Checks(m Machine, node string, ports []string, cloud Check) []Check {
	checks := []Check{
		{"root", "run it as root: sudo frond join …", func(context.Context) error {
			if id := os.Geteuid(); id != 0 {
				return fmt.Errorf("it runs as user %d", id)
			}
			return nil
		}},
		{"node-name", "give another one with --node-name: lower case letters, digits, - and .", func(context.Context) error {
			if faults := validation.IsDNS1123Subdomain(node); len(faults) > 0 {
				return fmt.Errorf("%q is no name of a node: %s", node, strings.Join(faults, "; "))
			}
			return nil
		}},
		{"edgecore", "put the program edgecore beside frond, or into the PATH", func(context.Context) error {
			_, err := FindEdgecore()
			return err
		}},
		{"cgroups", "mount them: on systemd machines they are; see also the kernel's cgroup_enable=memory", checkCgroups},
		{"ports", "end what listens there (ss -ltnp), or set listen and kubelet.port in the configuration and ignore this", checkPorts(ports)},
		{"disk", "make room, or choose another folder with --dir", func(context.Context) error { return checkDisk(m.Dir) }},
		{"clock", "set the clock, and let chrony or systemd-timesyncd keep it", func(context.Context) error { return checkClock(time.Now()) }},
		cloud,
	}
	if m.Runtime != Hollow {
		checks = append(checks, Check{
			"runtime", "install and start containerd, or name another socket with --runtime-endpoint",
			func(ctx context.Context) error { return checkRuntime(ctx, m.Runtime) },
		})
	}
	if !m.NoStart {
		checks = append(checks, Check{"systemd", "start edgecore by other means: --no-start", func(context.Context) error {
			if !HasSystemd() {
				return errors.New("systemd does not run this machine")
			}
			return nil
		}})
	}
	return checks
}

func checkCgroups(context.Context) error {
	const root = "/sys/fs/cgroup"
	if data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers")); err == nil {
		for _, want := range []string{"cpu", "memory", "pids"} {
			if !strings.Contains(" "+strings.TrimSpace(string(data))+" ", " "+want+" ") {
				return fmt.Errorf("the controller %s is missing in %s", want, root)
			}
		}
		return nil
	}
	for _, want := range []string{"cpu", "memory", "pids"} {
		if _, err := os.Stat(filepath.Join(root, want, "cgroup.procs")); err != nil {
			return fmt.Errorf("the controller %s is not mounted: %w", want, err)
		}
	}
	return nil
}

func checkPorts(addresses []string) func(context.Context) error {
	return func(ctx context.Context) error {
		var faults []error
		for _, address := range addresses {
			l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
			if err != nil {
				faults = append(faults, err)
				continue
			}
			_ = l.Close() // it was free
		}
		return errors.Join(faults...)
	}
}

// checkDisk checks the file system of a folder, or of its nearest existing parent.
func checkDisk(dir string) error {
	var s unix.Statfs_t
	for {
		err := unix.Statfs(dir, &s)
		if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", dir, err)
		}
		break
	}
	if left := int64(s.Bavail) * s.Bsize; left < minDiskBytes { //nolint:gosec // no disk has 2^63 blocks
		return fmt.Errorf("%s has %d MiB left, %d are needed", dir, left>>20, minDiskBytes>>20)
	}
	return nil
}

// checkClock refuses a time before 2026, when this program did not exist.
func checkClock(now time.Time) error {
	if least := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC); now.Before(least) {
		return fmt.Errorf("it says %s, which is certainly past", now.UTC().Format(time.RFC3339))
	}
	return nil
}

// dialRuntime connects to a runtime. gRPC waits for its socket as long as the first call does.
func dialRuntime(endpoint string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("runtime %s: %w", endpoint, err)
	}
	return conn, nil
}

func checkRuntime(ctx context.Context, endpoint string) error {
	conn, err := dialRuntime(endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // no call is in progress
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	if _, err := runtimeapi.NewRuntimeServiceClient(conn).Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
		return fmt.Errorf("the container runtime at %s does not answer: %w", endpoint, err)
	}
	return nil
}

// cgroupDriver returns the runtime's cgroup driver; "" for older runtimes, which do not report it.
func cgroupDriver(ctx context.Context, endpoint string) string {
	conn, err := dialRuntime(endpoint)
	if err != nil {
		return ""
	}
	defer func() { _ = conn.Close() }() // no call is in progress
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	answer, err := runtimeapi.NewRuntimeServiceClient(conn).RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if err != nil || answer.GetLinux() == nil {
		return ""
	}
	return strings.ToLower(answer.GetLinux().GetCgroupDriver().String())
}
