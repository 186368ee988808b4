package devcluster

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"

	"github.com/frond-edge/frond/api/identity"
)

// clusterLayout names each file of a cluster. dir is persistent; run holds sockets and mounts, is short and may vanish in a reboot.
type clusterLayout struct{ dir, run string }

// newLayout returns the layout of a cluster whose absolute folder is dir. The run folder is elsewhere because the path of a unix
// socket holds 107 bytes at most, and containerd's shims need 66 of them.
func newLayout(dir string) clusterLayout {
	id := clusterID(dir)
	if os.Geteuid() == 0 {
		return clusterLayout{dir: dir, run: filepath.Join("/run", id)}
	}
	base := os.Getenv("XDG_RUNTIME_DIR")
	if base == "" {
		base = os.TempDir()
	}
	return clusterLayout{dir: dir, run: filepath.Join(base, id+"-"+strconv.Itoa(os.Geteuid()))}
}

// clusterID distinguishes clusters in different folders, in names of namespaces, cgroups and run folders.
func clusterID(dir string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	return fmt.Sprintf("frond-%08x", h.Sum32())
}

func (l clusterLayout) path(elem ...string) string {
	return filepath.Join(append([]string{l.dir}, elem...)...)
}

func (l clusterLayout) programFile(name string) string { return l.path("bin", name) }
func (l clusterLayout) pkiDir() string                 { return l.path("pki") }
func (l clusterLayout) materialDir() string            { return l.path(identity.Namespace) }
func (l clusterLayout) egressFile() string             { return l.path("egress.yaml") }
func (l clusterLayout) kubeconfigFile() string         { return l.path("kubeconfig") }
func (l clusterLayout) logFile(part string) string     { return l.path("logs", part+".log") }
func (l clusterLayout) wanConfig() string              { return l.path("wan.json") }
func (l clusterLayout) wanSocket() string              { return filepath.Join(l.run, "wan.sock") }
func (l clusterLayout) hubConfig(h string) string      { return l.path(h, "nats-server.conf") }

// secretFile returns the file of one entry of a Secret that frond init makes.
func (l clusterLayout) secretFile(folder, entry string) string {
	return filepath.Join(l.materialDir(), folder, entry)
}

func (l clusterLayout) edgeFiles(edge string) edgeLayout {
	return edgeLayout{dir: l.path(edge), run: filepath.Join(l.run, edge), cgroup: clusterID(l.dir) + "/" + edge}
}

// edgeLayout names the files of one gateway. cgroup is relative to the root of each hierarchy.
type edgeLayout struct{ dir, run, cgroup string }

func (e edgeLayout) configFile() string       { return filepath.Join(e.dir, "edgecore.yaml") }
func (e edgeLayout) storeDir() string         { return filepath.Join(e.dir, "data") }
func (e edgeLayout) streamsDir() string       { return filepath.Join(e.storeDir(), "nats") }
func (e edgeLayout) historyFile() string      { return filepath.Join(e.dir, "history.jsonl") }
func (e edgeLayout) tokenFile() string        { return filepath.Join(e.dir, "join.token") }
func (e edgeLayout) manifestDir() string      { return filepath.Join(e.dir, "manifests") }
func (e edgeLayout) apiSocket() string        { return filepath.Join(e.run, "api.sock") }
func (e edgeLayout) containerdSocket() string { return filepath.Join(e.run, "containerd.sock") }
func (e edgeLayout) containerdConfig() string {
	return filepath.Join(e.dir, "containerd", "config.toml")
}
func (e edgeLayout) podNetworkDir() string { return filepath.Join(e.dir, "containerd", "net.d") }
func (e edgeLayout) podNetworkTemplate() string {
	return filepath.Join(e.dir, "containerd", "net.conflist.tmpl")
}

func (e edgeLayout) registryDir() string {
	return filepath.Join(e.dir, "containerd", "certs.d")
}
func (e edgeLayout) proxyConfig() string     { return filepath.Join(e.dir, "kube-proxy.yaml") }
func (e edgeLayout) proxyKubeconfig() string { return filepath.Join(e.dir, "kube-proxy.kubeconfig") }
func (e edgeLayout) holderReadyFile() string { return filepath.Join(e.run, "held") }

// privateMounts are the host folders of which each gateway has a private copy: upstream programs have their paths built in.
func (e edgeLayout) privateMounts() map[string]string {
	return map[string]string{
		"/var/lib/kubelet":    filepath.Join(e.dir, "host", "kubelet"),
		"/var/lib/cni":        filepath.Join(e.dir, "host", "cni"),
		"/var/log/pods":       filepath.Join(e.dir, "host", "log-pods"),
		"/var/log/containers": filepath.Join(e.dir, "host", "log-containers"),
		"/run/containerd":     filepath.Join(e.run, "containerd"),
	}
}
