package devcluster

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strconv"

	"github.com/frond-edge/frond/api/identity"
)

// layout names each file of a cluster. dir lasts; run holds sockets and mounts, is short and may vanish in a reboot.
type layout struct{ dir, run string }

// newLayout places a cluster whose absolute folder is dir. The run folder is elsewhere because the path of a unix
// socket holds 107 bytes at most, and containerd's shims need 66 of them.
func newLayout(dir string) layout {
	id := clusterID(dir)
	if os.Geteuid() == 0 {
		return layout{dir: dir, run: filepath.Join("/run", id)}
	}
	base := os.Getenv("XDG_RUNTIME_DIR")
	if base == "" {
		base = os.TempDir()
	}
	return layout{dir: dir, run: filepath.Join(base, id+"-"+strconv.Itoa(os.Geteuid()))}
}

// clusterID tells clusters in different folders apart: in names of namespaces, cgroups and run folders.
func clusterID(dir string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(dir)) // never fails
	return fmt.Sprintf("frond-%08x", h.Sum32())
}

func (l layout) in(elem ...string) string { return filepath.Join(append([]string{l.dir}, elem...)...) }

func (l layout) bin(name string) string    { return l.in("bin", name) }
func (l layout) pki() string               { return l.in("pki") }
func (l layout) material() string          { return l.in(identity.Namespace) }
func (l layout) egress() string            { return l.in("egress.yaml") }
func (l layout) kubeconfig() string        { return l.in("kubeconfig") }
func (l layout) log(part string) string    { return l.in("logs", part+".log") }
func (l layout) wanConfig() string         { return l.in("wan.json") }
func (l layout) wanSocket() string         { return filepath.Join(l.run, "wan.sock") }
func (l layout) hubConfig(h string) string { return l.in(h, "nats-server.conf") }

// secret is the file of an entry of a Secret that frond init makes.
func (l layout) secret(folder, entry string) string {
	return filepath.Join(l.material(), folder, entry)
}

func (l layout) edge(edge string) edgeLayout {
	return edgeLayout{dir: l.in(edge), run: filepath.Join(l.run, edge), cgroup: clusterID(l.dir) + "/" + edge}
}

// edgeLayout names the files of one gateway. cgroup is relative to the root of each hierarchy.
type edgeLayout struct{ dir, run, cgroup string }

func (e edgeLayout) config() string     { return filepath.Join(e.dir, "edgecore.yaml") }
func (e edgeLayout) store() string      { return filepath.Join(e.dir, "data") }
func (e edgeLayout) streams() string    { return filepath.Join(e.store(), "nats") }
func (e edgeLayout) history() string    { return filepath.Join(e.dir, "history.jsonl") }
func (e edgeLayout) token() string      { return filepath.Join(e.dir, "join.token") }
func (e edgeLayout) manifests() string  { return filepath.Join(e.dir, "manifests") }
func (e edgeLayout) api() string        { return filepath.Join(e.run, "api.sock") }
func (e edgeLayout) containerd() string { return filepath.Join(e.run, "containerd.sock") }
func (e edgeLayout) containerdConfig() string {
	return filepath.Join(e.dir, "containerd", "config.toml")
}
func (e edgeLayout) podNetworkDir() string { return filepath.Join(e.dir, "containerd", "net.d") }
func (e edgeLayout) podNetworkTemplate() string {
	return filepath.Join(e.dir, "containerd", "net.conflist.tmpl")
}

func (e edgeLayout) registries() string {
	return filepath.Join(e.dir, "containerd", "certs.d")
}
func (e edgeLayout) proxyConfig() string     { return filepath.Join(e.dir, "kube-proxy.yaml") }
func (e edgeLayout) proxyKubeconfig() string { return filepath.Join(e.dir, "kube-proxy.kubeconfig") }
func (e edgeLayout) held() string            { return filepath.Join(e.run, "held") }

// privates are the host folders that each gateway sees as its own: upstream programs have their paths built in.
func (e edgeLayout) privates() map[string]string {
	return map[string]string{
		"/var/lib/kubelet":    filepath.Join(e.dir, "host", "kubelet"),
		"/var/lib/cni":        filepath.Join(e.dir, "host", "cni"),
		"/var/log/pods":       filepath.Join(e.dir, "host", "log-pods"),
		"/var/log/containers": filepath.Join(e.dir, "host", "log-containers"),
		"/run/containerd":     filepath.Join(e.run, "containerd"),
	}
}
