package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
)

const (
	// registryAddress is on the loopback interface of each gateway's own network namespace.
	registryAddress = "127.0.0.1:5000"
	upstreamImages  = "registry.k8s.io"
)

// A testbed is a cluster of gateways, with a registry of test images beside each gateway's containerd.
type testbed struct {
	*devcluster.Cluster
	registries []*exec.Cmd // the ones that this process must stop
}

// growTestbed starts a testbed, or adds gateways to it. After an error it may be partially started.
func (o options) growTestbed(ctx context.Context, bed *testbed, gateways int, paths toolchain.Paths, talk io.Writer) error {
	cluster, err := devcluster.Up(ctx, devcluster.Options{
		Dir:      clusterDir(o.dir),
		Spec:     devcluster.Spec{Edges: gateways, Cloudcores: 2, Hubs: 1, Runtime: devcluster.Containerd, Services: true, Kubernetes: o.kubernetes},
		Progress: talk, Programs: func(context.Context, devcluster.Spec) (toolchain.Paths, error) { return paths, nil },
	})
	if cluster != nil {
		bed.Cluster = cluster
	}
	if err != nil {
		return fmt.Errorf("start the cluster: %w", err)
	}
	for i := range cluster.Spec().Edges { // an earlier run may have kept more than needed
		gateway := fmt.Sprintf("edge-%d", i+1)
		if err := cluster.MirrorRegistry(gateway, upstreamImages, registryAddress); err != nil {
			return err
		}
		registry, err := o.startRegistry(ctx, cluster, gateway, paths, talk)
		if err != nil {
			return err
		}
		if registry != nil {
			bed.registries = append(bed.registries, registry)
		}
	}
	return nil
}

// serverVersion returns the version of the cluster's API server.
func (b *testbed) serverVersion(ctx context.Context) (string, error) {
	out, err := b.Kubectl(ctx, "", "get", "--raw", "/version")
	if err != nil {
		return "", fmt.Errorf("ask for the version of the API server: %w", err)
	}
	var answer struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return "", fmt.Errorf("read the version of the API server: %w", err)
	}
	return answer.GitVersion, nil
}

// clusterDir returns a short path, because the path of a development cluster is limited. It is the same for the same folder of results.
func clusterDir(dir string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	return filepath.Join(os.TempDir(), fmt.Sprintf("frond-conformance-%08x", h.Sum32()))
}

// stop stops the cluster, also one that has not started completely.
func (b *testbed) stop(ctx context.Context, talk io.Writer) {
	const grace = 2 * time.Minute // containers of a busy gateway end slowly
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	for _, registry := range b.registries {
		_ = syscall.Kill(-registry.Process.Pid, syscall.SIGTERM) // the process may be gone
		_ = registry.Wait()
	}
	if b.Cluster == nil {
		return
	}
	if err := b.Down(ctx, true); err != nil {
		fmt.Fprintln(talk, "conformance: remove the cluster:", err)
	}
}

// startRegistry returns when images can be pulled. The registry runs until the cluster stops; nil means that an existing one is used.
func (o options) startRegistry(ctx context.Context, cluster *devcluster.Cluster, gateway string, paths toolchain.Paths, talk io.Writer) (*exec.Cmd, error) {
	if _, err := cluster.FromEdge(ctx, gateway, "http://"+registryAddress+"/v2/"); err == nil {
		return nil, nil
	}
	args, err := o.registryCommand(ctx, paths)
	if err != nil {
		return nil, err
	}
	cmd, err := cluster.Command(context.WithoutCancel(ctx), gateway, args...)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C must reach only this process, which stops the cluster in order
	cmd.Stderr = talk
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the registry: %w", err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil { // the process has ended
		return nil, errors.Join(fmt.Errorf("the registry of test images ended: %q", line), cmd.Wait())
	}
	fmt.Fprintln(talk, "test images are ready on", gateway)
	return cmd, nil
}

func (o options) registryCommand(ctx context.Context, paths toolchain.Paths) ([]string, error) {
	packages := filepath.Join(o.dir, "packages")
	if out, err := exec.CommandContext(ctx, paths.TestImages, "-fetch", "-packages", packages).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("get the packages of test images: %w: %s", err, bytes.TrimSpace(out))
	}
	args := []string{
		paths.TestImages, "-listen", registryAddress, "-blobs", filepath.Join(o.dir, "images"), "-agnhost", paths.Agnhost, "-packages", packages,
	}
	if o.subset {
		return args, nil
	}
	return append(args, "-sample-apiserver", paths.SampleAPIServer, "-etcd", paths.Kube), nil
}
