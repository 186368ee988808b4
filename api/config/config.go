// Package config holds the configuration files of cloudcore and edgecore: one strict YAML file each, where an unknown key
// is an error. Validate joins all faults, each naming its field.
package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/kubeversion"
)

// Hub is how cloudcore reaches the hub. All of the TLS files are needed; there is no unauthenticated hub.
type Hub struct {
	// URLs of the hub's servers: nats://host:port.
	URLs []string `json:"urls"`
	// NkeyFile holds the seed of the process's NATS user, mode 0600.
	NkeyFile string `json:"nkeyFile"`
	CAFile   string `json:"caFile"`
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
}

// CloudCore is the configuration file of cloudcore.
type CloudCore struct {
	// ID names this replica among all; the default is the host's name.
	ID string `json:"id,omitempty"`
	// Kubeconfig of the cluster; "" means the service account of the pod that cloudcore runs in.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Impersonation is how cloudcore acts as a node: constrained, the default, or classic for Kubernetes before 1.36, which needs the
	// rights of deploy/rbac/classic-impersonation.yaml.
	Impersonation kubeversion.Impersonation `json:"impersonation,omitempty"`
	Hub           Hub                       `json:"hub"`
	// Replicas of each stream; 0 means 3. It must not exceed the number of hub servers.
	Replicas int `json:"replicas,omitempty"`
	// DeletionGuard holds back deletions that look like a mistake.
	DeletionGuard DeletionGuard `json:"deletionGuard,omitzero"`
	// TombstoneAge is how long the message of a deletion stays in the hub at least; 0 means 15 min. A cloudcore that was
	// stopped for longer between a decision and its send may bring a deleted object back, so only tests want it short.
	TombstoneAge Duration `json:"tombstoneAge,omitzero"`
	// Restore says what happens after the Kubernetes API went back in time.
	Restore Restore `json:"restore,omitzero"`
	// Listen is the address of /metrics, /livez and /readyz; the default is 127.0.0.1:10280.
	Listen string `json:"listen,omitempty"`
	// Inspect answers how far each gateway is.
	Inspect Inspect `json:"inspect,omitzero"`
	// LogLevel is debug, info, warn or error; the default is info.
	LogLevel string `json:"logLevel,omitempty"`
	// Gateway leads kube-apiserver and Prometheus to the nodes.
	Gateway Gateway `json:"gateway,omitzero"`
	// Scopes bounds what components at the gateways may have sent.
	Scopes Scopes `json:"scopes,omitzero"`
	// Identity lets gateways in.
	Identity Identity `json:"identity,omitzero"`
	// ProtectedNamespaces are namespaces, beside frond-system, of which no object is given to a gateway and no pod stays on one.
	ProtectedNamespaces []string `json:"protectedNamespaces,omitempty"`
	// Certificates says which names gateways may have in their certificates.
	Certificates Certificates `json:"certificates,omitzero"`
}

// Gateway is the way of kube-apiserver and Prometheus to the nodes; what has no address is off.
type Gateway struct {
	// Socket is a unix socket for HTTP CONNECT, mode 0600, for a kube-apiserver on the same host.
	Socket string `json:"socket,omitempty"`
	// Address is host:port for HTTP CONNECT over TLS 1.3, with client certificates of ClientCAFile.
	Address string `json:"address,omitempty"`
	// ScrapeAddress is host:port for HTTPS requests of nodes' metrics, with bearer tokens of Kubernetes.
	ScrapeAddress string `json:"scrapeAddress,omitempty"`
	// MetricsHost is the host by which metrics-server reaches ScrapeAddress; "" tells it nothing of edge nodes.
	MetricsHost string `json:"metricsHost,omitempty"`
	// TrustedNetworks are those, such as 10.20.0.0/16, where a gateway's own report decides which addresses its pods and its host have.
	// They are for pods whose addresses are not of their Node's podCIDR and for pods in the host's network.
	TrustedNetworks []string `json:"trustedNetworks,omitempty"`
	// Direct is the way of kube-apiserver without a proxy.
	Direct Direct `json:"direct,omitzero"`
	// ReusePort lets several cloudcores of one user on one host listen on the same addresses.
	ReusePort bool `json:"reusePort,omitempty"`
	// CertFile and KeyFile serve both addresses. Certificate files are read again for each connection.
	CertFile     string `json:"certFile,omitempty"`
	KeyFile      string `json:"keyFile,omitempty"`
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// KubeletCAFile signs the kubelets' serving certificates; KubeletCertFile and KubeletKeyFile are shown to them when
	// their metrics are read.
	KubeletCAFile   string `json:"kubeletCAFile,omitempty"`
	KubeletCertFile string `json:"kubeletCertFile,omitempty"`
	KubeletKeyFile  string `json:"kubeletKeyFile,omitempty"`
}

// EdgeCore is the configuration file of edgecore.
type EdgeCore struct {
	// Node is the name of the Kubernetes Node that this gateway is.
	Node string `json:"node"`
	// Dir is where everything of the node is kept; it must survive a reboot.
	Dir      string   `json:"dir"`
	Hub      EdgeHub  `json:"hub"`
	Runtime  Runtime  `json:"runtime"`
	Kubelet  Kubelet  `json:"kubelet"`
	LocalAPI LocalAPI `json:"localAPI"`
	// History is a file to which each change of the store and each ack is appended, for fault tests; "" writes none.
	History string `json:"history,omitempty"`
	// Listen is the address of /metrics, /livez and /readyz; the default is 127.0.0.1:10281.
	Listen string `json:"listen,omitempty"`
	// LogLevel is debug, info, warn or error; the default is info.
	LogLevel string `json:"logLevel,omitempty"`
}

// Runtime says what runs the containers.
type Runtime struct {
	// Endpoint is the CRI socket, such as unix:///run/containerd/containerd.sock. With Hollow it may be empty.
	Endpoint string `json:"endpoint,omitempty"`
	// Hollow runs no containers at all: edgecore starts a CRI runtime of its own that only pretends.
	Hollow bool `json:"hollow,omitempty"`
}

// Kubelet is what a gateway may set of its kubelet; a zero field means the kubelet's own default.
type Kubelet struct {
	// External says that a stock kubelet of this machine uses the local API, at LocalAPI.Address: edgecore then runs none. Of the
	// settings below only Address and Port count, as the place where that one listens.
	External bool `json:"external,omitempty"`
	// CgroupDriver is cgroupfs or systemd; the default is cgroupfs.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
	// CgroupRoot is the cgroup below which pods are put.
	CgroupRoot string `json:"cgroupRoot,omitempty"`
	// NodeIP is the address that the Node reports; it must be on an interface and not loopback.
	NodeIP string            `json:"nodeIP,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// RegisterWithTaints are on the Node from its first write; later changes are the cluster's.
	RegisterWithTaints []corev1.Taint `json:"registerWithTaints,omitempty"`
	// StaticPodPath is a folder of pod manifests; the default is the folder manifests below Dir.
	StaticPodPath string `json:"staticPodPath,omitempty"`
	// Port of the kubelet's own API, default 10250, also in the tunnel; it has no read-only port.
	Port int32 `json:"port,omitempty"`
	// Address that the kubelet's API listens on; the default is 127.0.0.1: the cloud comes in through the tunnel.
	Address string `json:"address,omitempty"`
	MaxPods int32  `json:"maxPods,omitempty"`
	// CertFile and KeyFile are the kubelet's serving certificate; without them it asks the cluster for one, and for the next.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ClientCAFile is the CA of who may call the kubelet's API.
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// Settings are fields of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1); they replace what edgecore would set.
	Settings map[string]any `json:"settings,omitempty"`
}

// LocalAPI opens the node's Kubernetes API to other programs of the gateway. In memory it always serves the kubelet.
type LocalAPI struct {
	// Socket is the path of a unix socket, mode 0600; "" means api.sock below Dir.
	Socket string `json:"socket,omitempty"`
	// SocketGroup is a group, by name or number, whose members may open the socket too, and so have all of the gateway in their
	// hands; "" is nobody. The socket then needs a folder of its own, outside of Dir.
	SocketGroup string `json:"socketGroup,omitempty"`
	// Address is a loopback host:port for TLS with client certificates or tokens; "" opens none.
	Address      string `json:"address,omitempty"`
	CertFile     string `json:"certFile,omitempty"`
	KeyFile      string `json:"keyFile,omitempty"`
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// Pods lets the gateway's pods in.
	Pods Pods `json:"pods,omitzero"`
}

// The default addresses of the processes' own listeners: next to each other and to none of Kubernetes' own.
const (
	defaultCloudListen = "127.0.0.1:10280"
	defaultEdgeListen  = "127.0.0.1:10281"
	defaultReplicas    = 3

	defaultKubeletAddress = "127.0.0.1"
	defaultKubeletPort    = 10250
)

// EdgeMetricsPort is the port of a node's tunnels that leads to edgecore's own listener, wherever that is.
const EdgeMetricsPort = 10281

// ParseCloudCore reads and completes a configuration file of cloudcore. hostname is the default ID.
func ParseCloudCore(data []byte, hostname string) (CloudCore, error) {
	var c CloudCore
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return c, err
	}
	if c.ID == "" {
		c.ID = hostname
	}
	if c.Listen == "" {
		c.Listen = defaultCloudListen
	}
	if c.Replicas == 0 {
		c.Replicas = defaultReplicas
	}
	c.DeletionGuard.setDefaults()
	c.Restore.setDefaults()
	c.Identity.setDefaults(c.Hub)
	return c, c.Validate()
}

// Validate joins all faults.
func (c CloudCore) Validate() error {
	return errors.Join(
		requireField("id", c.ID),
		c.Hub.validate(),
		validateOneOf("replicas", c.Replicas, 1, 3, 5),
		validateHostPort("listen", c.Listen),
		c.DeletionGuard.validate(),
		c.validateTombstoneAge(),
		c.Restore.validate(),
		c.Inspect.validate(),
		c.Gateway.validate(),
		c.Scopes.validate(),
		c.Identity.validate(),
		c.Certificates.validate(),
		validateNamespaces("protectedNamespaces", c.ProtectedNamespaces),
		c.validateImpersonation(),
	)
}

func (c CloudCore) validateImpersonation() error {
	if c.Impersonation != "" && c.Impersonation != kubeversion.Constrained && c.Impersonation != kubeversion.Classic {
		return fmt.Errorf("impersonation: %q is neither %s nor %s", c.Impersonation, kubeversion.Constrained, kubeversion.Classic)
	}
	return nil
}

// minTombstoneAge is above the 15 s after which a decision is not sent any more.
const minTombstoneAge = 20 * time.Second

func (c CloudCore) validateTombstoneAge() error {
	if age := time.Duration(c.TombstoneAge); age != 0 && age < minTombstoneAge {
		return fmt.Errorf("tombstoneAge: %s is less than %s", age, minTombstoneAge)
	}
	return nil
}

func validateNamespaces(field string, names []string) error {
	var faults []error
	for _, name := range names {
		for _, fault := range validation.IsDNS1123Label(name) {
			faults = append(faults, fmt.Errorf("%s: %q: %s", field, name, fault))
		}
	}
	return errors.Join(faults...)
}

func (g Gateway) validate() error {
	var faults []error
	together := func(why, address string, files map[string]string) {
		if address == "" {
			return
		}
		faults = append(faults, validateHostPort(why, address))
		for _, field := range slices.Sorted(maps.Keys(files)) {
			faults = append(faults, requireField(field, files[field]))
		}
	}
	together("gateway.address", g.Address, map[string]string{
		"gateway.certFile": g.CertFile, "gateway.keyFile": g.KeyFile, "gateway.clientCAFile": g.ClientCAFile,
	})
	together("gateway.scrapeAddress", g.ScrapeAddress, map[string]string{
		"gateway.certFile": g.CertFile, "gateway.keyFile": g.KeyFile, "gateway.kubeletCAFile": g.KubeletCAFile,
		"gateway.kubeletCertFile": g.KubeletCertFile, "gateway.kubeletKeyFile": g.KubeletKeyFile,
	})
	if g.MetricsHost != "" {
		faults = append(faults, requireField("gateway.scrapeAddress", g.ScrapeAddress))
	}
	if networks, err := g.Networks(); err != nil {
		faults = append(faults, fmt.Errorf("gateway.trustedNetworks: %w", err))
	} else if slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Bits() == 0 }) {
		faults = append(faults, errors.New("gateway.trustedNetworks: a network of all addresses would let a gateway take any; name the networks of gateways"))
	}
	return errors.Join(append(faults, g.Direct.validate())...)
}

// ParseEdgeCore reads and completes a configuration file of edgecore.
func ParseEdgeCore(data []byte) (EdgeCore, error) {
	var c EdgeCore
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return c, err
	}
	if c.Listen == "" {
		c.Listen = defaultEdgeListen
	}
	if c.LocalAPI.Socket == "" {
		c.LocalAPI.Socket = filepath.Join(c.Dir, "api.sock")
	}
	c.LocalAPI.Pods.setDefaults(c.Runtime.Hollow)
	if c.Kubelet.StaticPodPath == "" {
		c.Kubelet.StaticPodPath = filepath.Join(c.Dir, "manifests")
	}
	if c.Kubelet.Address == "" {
		c.Kubelet.Address = defaultKubeletAddress
	}
	if c.Kubelet.Port == 0 {
		c.Kubelet.Port = defaultKubeletPort
	}
	return c, c.Validate()
}

// Validate joins all faults.
func (c EdgeCore) Validate() error {
	faults := []error{requireField("node", c.Node), requireField("dir", c.Dir), c.Hub.validate(), validateHostPort("listen", c.Listen)}
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		faults = append(faults, fmt.Errorf("dir: %q is not an absolute path", c.Dir))
	}
	if c.Kubelet.Port == EdgeMetricsPort {
		faults = append(faults, fmt.Errorf("kubelet.port: %d is edgecore's own in the tunnel", EdgeMetricsPort))
	}
	if c.Kubelet.External {
		faults = append(faults, requireField("localAPI.address", c.LocalAPI.Address))
	} else if c.Runtime.Endpoint == "" && !c.Runtime.Hollow {
		faults = append(faults, errors.New("runtime.endpoint: required unless runtime.hollow is true"))
	}
	if c.LocalAPI.SocketGroup != "" && strings.HasPrefix(c.LocalAPI.Socket, filepath.Clean(c.Dir)+"/") {
		faults = append(faults, fmt.Errorf("localAPI.socketGroup: %s is in dir, which is edgecore's alone: set localAPI.socket to a folder of its own", c.LocalAPI.Socket))
	}
	if c.LocalAPI.Address != "" {
		faults = append(faults,
			validateHostPort("localAPI.address", c.LocalAPI.Address),
			requireField("localAPI.certFile", c.LocalAPI.CertFile),
			requireField("localAPI.keyFile", c.LocalAPI.KeyFile),
			requireField("localAPI.clientCAFile", c.LocalAPI.ClientCAFile))
	}
	faults = append(faults, c.LocalAPI.Pods.validate(), validateTaints(c.Kubelet.RegisterWithTaints))
	return errors.Join(faults...)
}

func (h Hub) validate() error {
	return errors.Join(
		requireField("hub.nkeyFile", h.NkeyFile), requireField("hub.caFile", h.CAFile),
		requireField("hub.certFile", h.CertFile), requireField("hub.keyFile", h.KeyFile),
		validateURLs(h.URLs))
}

func validateURLs(urls []string) error {
	var faults []error
	if len(urls) == 0 {
		faults = append(faults, errors.New("hub.urls: at least one is required"))
	}
	for i, u := range urls {
		if parsed, err := url.Parse(u); err != nil || parsed.Host == "" {
			faults = append(faults, fmt.Errorf("hub.urls[%d]: %q is not scheme://host:port", i, u))
		}
	}
	return errors.Join(faults...)
}

func requireField(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s: required", field)
	}
	return nil
}

func validateHostPort(field, value string) error {
	if _, _, err := net.SplitHostPort(value); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

func validateOneOf(field string, value int, allowed ...int) error {
	if !slices.Contains(allowed, value) {
		return fmt.Errorf("%s: %d is not one of %v", field, value, allowed)
	}
	return nil
}
