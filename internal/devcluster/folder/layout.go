// Package folder names the files of a development cluster and keeps its state: its size, its ports and its processes.
//
// Nothing is kept in memory that state.json does not hold. Changing calls run inside Update, which holds the folder's lock.
package folder

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/frond-edge/frond/api/names"
)

// Layout names each file of a cluster. Dir is persistent; Run holds sockets and mounts, is short and may vanish in a reboot.
type Layout struct{ Dir, Run string }

// NewLayout returns the layout of a cluster whose absolute folder is dir. The run folder is elsewhere because the path of a unix
// socket holds 107 bytes at most, and containerd's shims need 66 of them.
func NewLayout(dir string) Layout {
	id := ID(dir)
	if os.Geteuid() == 0 {
		return Layout{Dir: dir, Run: filepath.Join("/run", id)}
	}
	base := os.Getenv("XDG_RUNTIME_DIR")
	if base == "" {
		base = os.TempDir()
	}
	return Layout{Dir: dir, Run: filepath.Join(base, id+"-"+strconv.Itoa(os.Geteuid()))}
}

// ID distinguishes clusters in different folders, in names of namespaces, cgroups and run folders.
func ID(dir string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	return fmt.Sprintf("frond-%08x", h.Sum32())
}

// Path returns a path below Dir.
func (l Layout) Path(elem ...string) string {
	return filepath.Join(append([]string{l.Dir}, elem...)...)
}

// ProgramFile is the link to a program, which names the one that runs.
func (l Layout) ProgramFile(name string) string { return l.Path("bin", name) }

// PKIDir is the folder of the Kubernetes certificates.
func (l Layout) PKIDir() string { return l.Path("pki") }

// MaterialDir is the folder of the Secrets that frond init makes.
func (l Layout) MaterialDir() string { return l.Path(names.Namespace) }

// EgressFile is the egress configuration of kube-apiserver.
func (l Layout) EgressFile() string { return l.Path("egress.yaml") }

// KubeconfigFile is the administrator's kubeconfig.
func (l Layout) KubeconfigFile() string { return l.Path("kubeconfig") }

// LogFile is a component's log.
func (l Layout) LogFile(part string) string { return l.Path("logs", part+".log") }

// WanConfig is the configuration of the simulated network.
func (l Layout) WanConfig() string { return l.Path("wan.json") }

// WanSocket is the control socket of the simulated network.
func (l Layout) WanSocket() string { return filepath.Join(l.Run, "wan.sock") }

// HubConfig is a hub server's configuration.
func (l Layout) HubConfig(h string) string { return l.Path(h, "nats-server.conf") }

// SecretFile returns the file of one entry of a Secret that frond init makes.
func (l Layout) SecretFile(folder, entry string) string {
	return filepath.Join(l.MaterialDir(), folder, entry)
}

// Gateway returns the files of a gateway.
func (l Layout) Gateway(edge string) Gateway {
	return Gateway{Dir: l.Path(edge), Run: filepath.Join(l.Run, edge), Cgroup: ID(l.Dir) + "/" + edge}
}

// Gateway names the files of one gateway. Cgroup is relative to the root of each hierarchy.
type Gateway struct{ Dir, Run, Cgroup string }

// ConfigFile is edgecore's configuration.
func (e Gateway) ConfigFile() string { return filepath.Join(e.Dir, "edgecore.yaml") }

// StoreDir is edgecore's data.
func (e Gateway) StoreDir() string { return filepath.Join(e.Dir, "data") }

// StreamsDir is the leaf's JetStream.
func (e Gateway) StreamsDir() string { return filepath.Join(e.StoreDir(), "nats") }

// HistoryFile is the record of the changes of its store.
func (e Gateway) HistoryFile() string { return filepath.Join(e.Dir, "history.jsonl") }

// TokenFile is its bootstrap token.
func (e Gateway) TokenFile() string { return filepath.Join(e.Dir, "join.token") }

// ManifestDir is its static pods.
func (e Gateway) ManifestDir() string { return filepath.Join(e.Dir, "manifests") }

// APISocket is the socket of its local API.
func (e Gateway) APISocket() string { return filepath.Join(e.Run, "api.sock") }

// MapperDir is the folder of the sockets of mappers.
func (e Gateway) MapperDir() string { return filepath.Join(e.Run, "dmi") }

// ContainerdSocket is containerd's socket.
func (e Gateway) ContainerdSocket() string { return filepath.Join(e.Run, "containerd.sock") }

// ContainerdConfig is containerd's configuration.
func (e Gateway) ContainerdConfig() string {
	return filepath.Join(e.Dir, "containerd", "config.toml")
}

// PodNetworkDir is its CNI configurations.
func (e Gateway) PodNetworkDir() string { return filepath.Join(e.Dir, "containerd", "net.d") }

// PodNetworkTemplate is the template of its CNI configuration.
func (e Gateway) PodNetworkTemplate() string {
	return filepath.Join(e.Dir, "containerd", "net.conflist.tmpl")
}

// RegistryDir is containerd's registry configurations.
func (e Gateway) RegistryDir() string {
	return filepath.Join(e.Dir, "containerd", "certs.d")
}

// ProxyConfig is kube-proxy's configuration.
func (e Gateway) ProxyConfig() string { return filepath.Join(e.Dir, "kube-proxy.yaml") }

// ProxyKubeconfig is kube-proxy's kubeconfig.
func (e Gateway) ProxyKubeconfig() string { return filepath.Join(e.Dir, "kube-proxy.kubeconfig") }

// HolderReadyFile is the file that exists when its namespaces are held.
func (e Gateway) HolderReadyFile() string { return filepath.Join(e.Run, "held") }

// PrivateMounts are the host folders of which each gateway has a private copy: upstream programs have their paths built in.
func (e Gateway) PrivateMounts() map[string]string {
	return map[string]string{
		"/var/lib/kubelet":    filepath.Join(e.Dir, "host", "kubelet"),
		"/var/lib/cni":        filepath.Join(e.Dir, "host", "cni"),
		"/var/log/pods":       filepath.Join(e.Dir, "host", "log-pods"),
		"/var/log/containers": filepath.Join(e.Dir, "host", "log-containers"),
		"/run/containerd":     filepath.Join(e.Run, "containerd"),
	}
}

// HolderName names the process that keeps a gateway's mount namespace.
func HolderName(edge string) string { return "holder-" + strings.TrimPrefix(edge, "edge-") }

// ContainerdName names a gateway's containerd.
func ContainerdName(edge string) string { return "containerd-" + strings.TrimPrefix(edge, "edge-") }

// ProxyName names a gateway's kube-proxy.
func ProxyName(edge string) string { return "proxy-" + strings.TrimPrefix(edge, "edge-") }

// DevicesDir is the folder of the virtual devices in a cluster's folder.
const DevicesDir = "devices"

// CloneName names the copy of a gateway.
func CloneName(edge string) string { return edge + "-clone" }

// CloneNames lists the folders of all possible copies.
func CloneNames(s Spec) []string {
	var names []string
	for _, e := range Names("edge", s.Edges) {
		names = append(names, CloneName(e))
	}
	return names
}
