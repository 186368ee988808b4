package render

import (
	"path/filepath"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/toolchain"
)

// Unexported functions for the tests.
var (
	LegacyFileNames        = legacyFileNames
	PodNetworkTemplateText = podNetworkTemplateText
)

// PodNetworkPath returns the path of a gateway's CNI configuration, which containerd writes.
func PodNetworkPath(dir, edge string) string {
	return filepath.Join(folder.Layout{Dir: dir}.Gateway(edge).PodNetworkDir(), podNetworkFile)
}

// RenderFiles writes all files of a cluster of this spec in dir and run, with ports counted up from 20000.
func RenderFiles(dir, run string, spec folder.Spec, programs toolchain.Paths) error {
	l := folder.Layout{Dir: dir, Run: run}
	ports := map[string]int{}
	for i, name := range folder.PortNames(spec) {
		ports[name] = folder.PortBase + i
	}
	s := folder.State{Spec: spec, Ports: ports, Programs: programs}
	if err := WriteControlPlane(l, ports); err != nil {
		return err
	}
	if err := WriteMetricsServer(l, s); err != nil {
		return err
	}
	files, _, err := MakeMaterial(l, s)
	if err != nil {
		return err
	}
	if _, err := WriteHub(l, s, files); err != nil {
		return err
	}
	if _, err := WriteWan(l, s); err != nil {
		return err
	}
	if err := WriteCores(l, s); err != nil {
		return err
	}
	return WriteEnv(l, s)
}

// Flags returns the command lines of the control plane.
func Flags(dir string) map[string][]string {
	l := folder.Layout{Dir: dir, Run: "/run/x"}
	ports := map[string]int{"etcd": 20000, "etcd-peer": 20001, "apiserver": 20002, "scrape": 20003, "metrics-server": 20004}
	return map[string][]string{
		"etcd": EtcdFlags(l, ports), "kube-apiserver": APIServerFlags(l, folder.State{Ports: ports}),
		"kube-controller-manager": ControllerManagerFlags(l), "kube-scheduler": SchedulerFlags(l),
		"metrics-server": MetricsServerFlags(l, ports),
	}
}
