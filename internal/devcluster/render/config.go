// Package render writes the files of a development cluster's components: configurations, kubeconfigs, certificates and manifests.
//
// What it writes follows from the folder's state alone. It starts nothing.
package render

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/cgroups"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/internal/install"
)

// cloudcoreConfig returns the configuration file of one cloudcore.
func cloudcoreConfig(l folder.Layout, s folder.State, name string) config.CloudCore {
	// The configuration has no URLs for gateways: they keep their own URLs, which lead through the WAN.
	c := InstallSettings(s).Cloudcore(l.SecretFile(install.FolderCloudcore, ""), filepath.Join(l.PKIDir(), "ca.crt"))
	c.ID, c.Kubeconfig, c.Listen = name, l.Path("cloudcore.kubeconfig"), folder.Loopback(s.Ports[name])
	c.Hub.URLs, c.Inspect.Address = hubURLs(s), folder.Loopback(s.Ports[folder.InspectPort(name)])
	c.Gateway = config.Gateway{
		// The apiserver knows one address. All cloudcores listen on it, and the kernel spreads the connections.
		Address: folder.Loopback(s.Ports["egress"]), ScrapeAddress: folder.Loopback(s.Ports["scrape"]), ReusePort: true,
		CertFile: filepath.Join(l.PKIDir(), "gateway.crt"), KeyFile: filepath.Join(l.PKIDir(), "gateway.key"),
		ClientCAFile:    filepath.Join(l.PKIDir(), "egress-ca.crt"),
		KubeletCAFile:   filepath.Join(l.PKIDir(), "ca.crt"),
		KubeletCertFile: filepath.Join(l.PKIDir(), "kubelet-scrape.crt"), KubeletKeyFile: filepath.Join(l.PKIDir(), "kubelet-scrape.key"),
	}
	c.Rules.AllowedTargets = []string{"127.0.0.0/8"} // a developer's servers
	if s.Spec.Direct {
		c.Gateway.Direct = directConfig(l, s)
	}
	if kubeversion.ImpersonationOf(s.Spec.Kubernetes) == kubeversion.Classic {
		c.Impersonation = kubeversion.Classic
	}
	if !s.Spec.NoMetrics {
		c.Gateway.MetricsHost = "127.0.0.1"
	}
	if s.Spec.History {
		c.TombstoneAge = config.Duration(testTombstoneAge)
	}
	return c
}

// testTombstoneAge is short so that a fault test covers purges.
const testTombstoneAge = 20 * time.Second

// EdgecoreConfig returns the configuration file of gateway number i, counted from 1.
func EdgecoreConfig(l folder.Layout, s folder.State, hash, name string, i int) config.EdgeCore {
	e := l.Gateway(name)
	clusterCA := filepath.Join(l.PKIDir(), "ca.crt")
	c := config.EdgeCore{
		Node:   name,
		Dir:    e.StoreDir(),
		Listen: folder.Loopback(s.Ports[name]),
		Hub:    config.EdgeHub{URLs: leafURLs(s, name), TokenFile: e.TokenFile(), CAHashes: []string{hash}},
		Kubelet: config.Kubelet{
			Labels:        map[string]string{"frond.io/gateway": "true"},
			StaticPodPath: e.ManifestDir(),
			ClientCAFile:  clusterCA,
			Address:       "127.0.0.1",
		},
		LocalAPI: config.LocalAPI{
			Socket:       e.APISocket(),
			Address:      folder.Loopback(s.Ports[name+"-api"]),
			CertFile:     filepath.Join(e.Dir, "serving.crt"),
			KeyFile:      filepath.Join(e.Dir, "serving.key"),
			ClientCAFile: clusterCA,
		},
	}
	if s.Spec.History {
		c.History = e.HistoryFile()
	}
	if s.Spec.Devices {
		c.Devices.MQTT = config.MQTT{Mode: config.MQTTInternal, AllowLoopbackAnonymous: true}
		c.Devices.DMI = config.DMI{Enabled: true, Dir: e.MapperDir(), AllowHost: true}
	}
	if s.Spec.Runtime == folder.Hollow {
		c.Runtime.Hollow = true
		c.Kubelet.Port = int32(s.Ports[name+"-kubelet"]) // the host's network, shared with the other gateways
		if s.Spec.Devices {
			c.Devices.MQTT.Listen = folder.Loopback(s.Ports[name+"-mqtt"])
		}
		return c
	}
	c.Runtime.Endpoint = "unix://" + e.ContainerdSocket()
	c.Kubelet.NodeIP = wan.Address(i)
	c.Kubelet.CgroupDriver = "cgroupfs"
	c.Kubelet.CgroupRoot = cgroups.PodParent(e.Cgroup)
	c.Kubelet.Settings = map[string]any{ // the developer's disk may be nearly full
		"evictionHard":                map[string]any{"nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
	}
	if s.Spec.Services {
		c.Kubelet.Settings["clusterDNS"], c.Kubelet.Settings["clusterDomain"] = []string{clusterDNS}, clusterDomain
	}
	return c
}

// WriteCores writes the configuration of each cloudcore and gateway, and the folders of the gateways.
func WriteCores(l folder.Layout, s folder.State) error {
	ca, err := pki.NewAuthority(l.PKIDir(), "ca")
	if err != nil {
		return err
	}
	if s.Spec.Direct {
		if err := issueDirect(ca); err != nil {
			return err
		}
	}
	for _, name := range folder.Names("cloudcore", s.Spec.Cloudcores) {
		if err := WriteYAML(l.Path(name, "cloudcore.yaml"), cloudcoreConfig(l, s, name)); err != nil {
			return err
		}
	}
	return WriteGateways(l, s, ca)
}

// WriteGateways is the gateways' part of WriteCores.
func WriteGateways(l folder.Layout, s folder.State, ca *pki.Authority) error {
	for i, name := range folder.Names("edge", s.Spec.Edges) {
		if err := writeEdge(l, s, ca, name, i+1); err != nil {
			return err
		}
	}
	return nil
}

// writeEdge writes the configuration of one gateway and of the components beside its edgecore, and makes its folders.
func writeEdge(l folder.Layout, s folder.State, ca *pki.Authority, name string, i int) error {
	e := l.Gateway(name)
	for _, dir := range []string{e.StoreDir(), e.ManifestDir(), e.Run} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make folder of %s: %w", name, err)
		}
	}
	hosts := []string{"127.0.0.1", "localhost", name, wan.Address(i), wire.TunnelAddress(name).String()} // the last for a stock kubelet
	if s.Spec.Direct {
		hosts = append(hosts, directHost())
	}
	hash, err := HubCAHash(l)
	if err != nil {
		return err
	}
	serving, err := ca.IssueIn(e.Dir, "serving", pki.Subject{Name: "system:node:" + name, Groups: []string{"system:nodes"}, Hosts: hosts})
	if err != nil {
		return err
	}
	if err := WriteYAML(e.ConfigFile(), EdgecoreConfig(l, s, hash, name, i)); err != nil {
		return err
	}
	if s.Spec.KubeProxy {
		if err := writeProxy(l, s, ca.Cert, name, serving); err != nil {
			return err
		}
	}
	if s.Spec.Runtime == folder.Containerd {
		return writeContainerd(e, s.Programs)
	}
	return nil
}

// WriteYAML writes a value as YAML.
func WriteYAML(path string, v any) error {
	data, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return folder.WriteFile(path, data, 0o600)
}

// WriteEnv writes the shell settings that a developer sources.
func WriteEnv(l folder.Layout, s folder.State) error {
	in := func(entry string) string { return l.SecretFile(install.FolderAdmin, entry) }
	env := fmt.Sprintf(`# Made by "frond dev up". In a shell: . %[1]s
export KUBECONFIG=%[2]q
export PATH=%[3]q:"$PATH"
# Where frond status and frond sync ask.
export FROND_CLOUDCORE=%[11]q
# The nats CLI, as admin. With a context instead: XDG_CONFIG_HOME=%[4]q nats --context %[5]s
export NATS_URL=%[6]q NATS_NKEY=%[7]q
export NATS_CA=%[8]q NATS_CERT=%[9]q NATS_KEY=%[10]q
`, l.Path("env"), l.KubeconfigFile(), l.Path("bin"), l.Dir, contextName, strings.Join(hubURLs(s), ","), in(install.EntryAdminSeed),
		in(install.EntryBundle), in(install.EntryCert), in(install.EntryKey), InspectURLs(s))
	return folder.WriteFile(l.Path("env"), []byte(env), 0o644)
}

// InspectURLs returns the inspection addresses of the cloudcores, in the format of FROND_CLOUDCORE.
func InspectURLs(s folder.State) string {
	var urls []string
	for _, name := range folder.Names("cloudcore", s.Spec.Cloudcores) {
		urls = append(urls, "https://"+folder.Loopback(s.Ports[folder.InspectPort(name)]))
	}
	return strings.Join(urls, ",")
}

// LinkPrograms fills bin/ with links to the programs that a developer calls.
func LinkPrograms(l folder.Layout, s folder.State) error {
	if err := os.MkdirAll(l.Path("bin"), 0o755); err != nil {
		return fmt.Errorf("make bin: %w", err)
	}
	links := map[string]string{"frond": s.Programs.Frond, "nats-server": s.Programs.NatsServer, "ctr": s.Programs.Ctr}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy", "metrics-server"} {
		links[name] = s.Programs.Kube
	}
	if older := s.Programs.ControlPlane; older != "" {
		for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
			links[name] = filepath.Join(older, name)
		}
	}
	for name, target := range links {
		if target == "" {
			continue
		}
		temp := l.ProgramFile("." + name + time.Now().Format(".150405.000000")) // a link is replaced atomically, never missing
		if err := os.Symlink(target, temp); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if err := os.Rename(temp, l.ProgramFile(name)); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}
