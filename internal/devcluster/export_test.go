package devcluster

import (
	"context"
	"path/filepath"
	"time"

	"github.com/frond-edge/frond/internal/toolchain"
)

// Unexported functions for the tests.
var (
	MergeSpec       = mergeSpec
	PortNames       = portNames
	ChoosePorts     = choosePorts
	APIPath         = apiPath
	ClusterID       = clusterID
	LockFolder      = lockFolder
	LegacyFileNames = legacyFileNames

	PodNetworkTemplateText = podNetworkTemplateText
)

// RemoveStalePodNetwork removes the pod network as a reboot does, for the gateway edge of a cluster in dir.
func RemoveStalePodNetwork(dir, edge, podCIDR string) error {
	return removeStalePodNetwork(clusterLayout{dir: dir}.edgeFiles(edge), podCIDR)
}

// PodNetworkPath returns the path of a gateway's CNI configuration, which containerd writes.
func PodNetworkPath(dir, edge string) string {
	return filepath.Join(clusterLayout{dir: dir}.edgeFiles(edge).podNetworkDir(), podNetworkFile)
}

// RenderFiles writes all files of a cluster of this spec in dir and run, with ports counted up from 20000.
func RenderFiles(dir, run string, spec Spec, programs toolchain.Paths) error {
	l := clusterLayout{dir: dir, run: run}
	ports := map[string]int{}
	for i, name := range portNames(spec) {
		ports[name] = portBase + i
	}
	s := clusterState{Spec: spec, Ports: ports, Programs: programs}
	if err := writeControlPlane(l, ports); err != nil {
		return err
	}
	if err := writeMetricsServer(l, s); err != nil {
		return err
	}
	files, _, err := makeMaterial(l, s)
	if err != nil {
		return err
	}
	if _, err := writeHub(l, s, files); err != nil {
		return err
	}
	if _, err := writeWan(l, s); err != nil {
		return err
	}
	if err := writeCores(l, s); err != nil {
		return err
	}
	return writeEnv(l, s)
}

// Flags returns the command lines of the control plane.
func Flags(dir string) map[string][]string {
	l := clusterLayout{dir: dir, run: "/run/x"}
	ports := map[string]int{"etcd": 20000, "etcd-peer": 20001, "apiserver": 20002, "scrape": 20003, "metrics-server": 20004}
	return map[string][]string{
		"etcd": etcdFlags(l, ports), "kube-apiserver": apiserverFlags(l, clusterState{Ports: ports}),
		"kube-controller-manager": controllerManagerFlags(l), "kube-scheduler": schedulerFlags(l),
		"metrics-server": metricsServerFlags(l, ports),
	}
}

// HubReady checks a server of the hub as Up does.
func HubReady(ctx context.Context, dir, run, hub string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	return hubReady(ctx, clusterLayout{dir: dir, run: run}, clusterState{Ports: map[string]int{hub: port}}, hub)
}
