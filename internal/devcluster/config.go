package devcluster

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
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/wan"
	"github.com/frond-edge/frond/internal/install"
)

// cloudcoreConfig returns the configuration file of one cloudcore.
func cloudcoreConfig(l clusterLayout, s clusterState, name string) config.CloudCore {
	// The configuration has no URLs for gateways: they keep their own URLs, which lead through the WAN.
	c := installSettings(s).Cloudcore(l.secretFile(install.FolderCloudcore, ""), filepath.Join(l.pkiDir(), "ca.crt"))
	c.ID, c.Kubeconfig, c.Listen = name, l.path("cloudcore.kubeconfig"), loopbackAddress(s.Ports[name])
	c.Hub.URLs, c.Inspect.Address = hubURLs(s), loopbackAddress(s.Ports[inspectPort(name)])
	c.Gateway = config.Gateway{
		// The apiserver knows one address. All cloudcores listen on it, and the kernel spreads the connections.
		Address: loopbackAddress(s.Ports["egress"]), ScrapeAddress: loopbackAddress(s.Ports["scrape"]), ReusePort: true,
		CertFile: filepath.Join(l.pkiDir(), "gateway.crt"), KeyFile: filepath.Join(l.pkiDir(), "gateway.key"),
		ClientCAFile:    filepath.Join(l.pkiDir(), "egress-ca.crt"),
		KubeletCAFile:   filepath.Join(l.pkiDir(), "ca.crt"),
		KubeletCertFile: filepath.Join(l.pkiDir(), "kubelet-scrape.crt"), KubeletKeyFile: filepath.Join(l.pkiDir(), "kubelet-scrape.key"),
	}
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

// edgecoreConfig returns the configuration file of gateway number i, counted from 1.
func edgecoreConfig(l clusterLayout, s clusterState, hash, name string, i int) config.EdgeCore {
	e := l.edgeFiles(name)
	clusterCA := filepath.Join(l.pkiDir(), "ca.crt")
	c := config.EdgeCore{
		Node:   name,
		Dir:    e.storeDir(),
		Listen: loopbackAddress(s.Ports[name]),
		Hub:    config.EdgeHub{URLs: leafURLs(s, name), TokenFile: e.tokenFile(), CAHashes: []string{hash}},
		Kubelet: config.Kubelet{
			Labels:        map[string]string{"frond.io/gateway": "true"},
			StaticPodPath: e.manifestDir(),
			ClientCAFile:  clusterCA,
			Address:       "127.0.0.1",
		},
		LocalAPI: config.LocalAPI{
			Socket:       e.apiSocket(),
			Address:      loopbackAddress(s.Ports[name+"-api"]),
			CertFile:     filepath.Join(e.dir, "serving.crt"),
			KeyFile:      filepath.Join(e.dir, "serving.key"),
			ClientCAFile: clusterCA,
		},
	}
	if s.Spec.History {
		c.History = e.historyFile()
	}
	if s.Spec.Runtime == Hollow {
		c.Runtime.Hollow = true
		c.Kubelet.Port = int32(s.Ports[name+"-kubelet"]) // the host's network, shared with the other gateways
		return c
	}
	c.Runtime.Endpoint = "unix://" + e.containerdSocket()
	c.Kubelet.NodeIP = wan.Address(i)
	c.Kubelet.CgroupDriver = "cgroupfs"
	c.Kubelet.CgroupRoot = e.podCgroup()
	c.Kubelet.Settings = map[string]any{ // the developer's disk may be nearly full
		"evictionHard":                map[string]any{"nodefs.available": "0%", "imagefs.available": "0%", "nodefs.inodesFree": "0%"},
		"imageGCHighThresholdPercent": 100,
	}
	if s.Spec.Services {
		c.Kubelet.Settings["clusterDNS"], c.Kubelet.Settings["clusterDomain"] = []string{clusterDNS}, clusterDomain
	}
	return c
}

// writeCores writes the configuration of each cloudcore and gateway, and the folders of the gateways.
func writeCores(l clusterLayout, s clusterState) error {
	ca, err := pki.NewAuthority(l.pkiDir(), "ca")
	if err != nil {
		return err
	}
	if s.Spec.Direct {
		if err := issueDirect(ca); err != nil {
			return err
		}
	}
	for _, name := range numberedNames("cloudcore", s.Spec.Cloudcores) {
		if err := writeYAML(l.path(name, "cloudcore.yaml"), cloudcoreConfig(l, s, name)); err != nil {
			return err
		}
	}
	return writeGateways(l, s, ca)
}

// writeGateways is the gateways' part of writeCores.
func writeGateways(l clusterLayout, s clusterState, ca *pki.Authority) error {
	for i, name := range numberedNames("edge", s.Spec.Edges) {
		if err := writeEdge(l, s, ca, name, i+1); err != nil {
			return err
		}
	}
	return nil
}

// writeEdge writes the configuration of one gateway and of the components beside its edgecore, and makes its folders.
func writeEdge(l clusterLayout, s clusterState, ca *pki.Authority, name string, i int) error {
	e := l.edgeFiles(name)
	for _, dir := range []string{e.storeDir(), e.manifestDir(), e.run} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make folder of %s: %w", name, err)
		}
	}
	hosts := []string{"127.0.0.1", "localhost", name, wan.Address(i), wire.TunnelAddress(name).String()} // the last for a stock kubelet
	if s.Spec.Direct {
		hosts = append(hosts, directHost())
	}
	hash, err := hubCAHash(l)
	if err != nil {
		return err
	}
	serving, err := ca.IssueIn(e.dir, "serving", pki.Subject{Name: "system:node:" + name, Groups: []string{"system:nodes"}, Hosts: hosts})
	if err != nil {
		return err
	}
	if err := writeYAML(e.configFile(), edgecoreConfig(l, s, hash, name, i)); err != nil {
		return err
	}
	if s.Spec.KubeProxy {
		if err := writeProxy(l, s, ca.Cert, name, serving); err != nil {
			return err
		}
	}
	if s.Spec.Runtime == Containerd {
		return writeContainerd(e, s.Programs)
	}
	return nil
}

func writeYAML(path string, v any) error {
	data, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return writeFile(path, data, 0o600)
}

// writeEnv writes the shell settings that a developer sources.
func writeEnv(l clusterLayout, s clusterState) error {
	in := func(entry string) string { return l.secretFile(install.FolderAdmin, entry) }
	env := fmt.Sprintf(`# Made by "frond dev up". In a shell: . %[1]s
export KUBECONFIG=%[2]q
export PATH=%[3]q:"$PATH"
# Where frond status and frond sync ask.
export FROND_CLOUDCORE=%[11]q
# The nats CLI, as admin. With a context instead: XDG_CONFIG_HOME=%[4]q nats --context %[5]s
export NATS_URL=%[6]q NATS_NKEY=%[7]q
export NATS_CA=%[8]q NATS_CERT=%[9]q NATS_KEY=%[10]q
`, l.path("env"), l.kubeconfigFile(), l.path("bin"), l.dir, contextName, strings.Join(hubURLs(s), ","), in(install.EntryAdminSeed),
		in(install.EntryBundle), in(install.EntryCert), in(install.EntryKey), inspectURLs(s))
	return writeFile(l.path("env"), []byte(env), 0o644)
}

// linkPrograms fills bin/ with links to the programs that a developer calls.
func linkPrograms(l clusterLayout, s clusterState) error {
	if err := os.MkdirAll(l.path("bin"), 0o755); err != nil {
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
		temp := l.programFile("." + name + time.Now().Format(".150405.000000")) // a link is replaced atomically, never missing
		if err := os.Symlink(target, temp); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
		if err := os.Rename(temp, l.programFile(name)); err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}
