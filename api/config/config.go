// Package config defines the configuration files of cloudcore and edgecore. Each is one strict YAML file, in which an unknown key is an
// error. Validate joins all errors, each naming its field.
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

// Hub configures cloudcore's connection to the hub. All TLS files are required; there is no unauthenticated hub.
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
	// permissions of deploy/rbac/classic-impersonation.yaml.
	Impersonation kubeversion.Impersonation `json:"impersonation,omitempty"`
	Hub           Hub                       `json:"hub"`
	// Replicas of each stream; 0 means 3. It must not exceed the number of hub servers.
	Replicas int `json:"replicas,omitempty"`
	// Leases limits how often the Leases of gateways are renewed.
	Leases Leases `json:"leases,omitzero"`
	// DeletionGuard holds suspicious deletions.
	DeletionGuard DeletionGuard `json:"deletionGuard,omitzero"`
	// TombstoneAge is the least time that the message of a deletion stays in the hub; 0 means 15 min. A cloudcore that was stopped for
	// longer between a decision and its send may bring a deleted object back, so only tests want it short.
	TombstoneAge Duration `json:"tombstoneAge,omitzero"`
	// Restore configures the handling of pods after the Kubernetes API went back in time.
	Restore Restore `json:"restore,omitzero"`
	// Listen is the address of /metrics, /livez and /readyz; the default is 127.0.0.1:10280.
	Listen string `json:"listen,omitempty"`
	// Inspect configures the listener that reports the progress of each gateway.
	Inspect Inspect `json:"inspect,omitzero"`
	// LogLevel is debug, info, warn or error; the default is info.
	LogLevel string `json:"logLevel,omitempty"`
	// Gateway connects kube-apiserver and Prometheus to the nodes.
	Gateway Gateway `json:"gateway,omitzero"`
	// Scopes bounds the objects that components at the gateways may request.
	Scopes Scopes `json:"scopes,omitzero"`
	// Links describes how gateways' links return after an outage.
	Links Links `json:"links,omitzero"`
	// Identity admits gateways.
	Identity Identity `json:"identity,omitzero"`
	// ProtectedNamespaces are namespaces, besides frond-system, from which gateways receive no objects and whose pods may not stay on one.
	ProtectedNamespaces []string `json:"protectedNamespaces,omitempty"`
	// Certificates limits the names in gateways' certificates.
	Certificates Certificates `json:"certificates,omitzero"`
	// Devices configures what cloudcore does about devices.
	Devices CloudDevices `json:"devices,omitzero"`
	// Rules configures where KubeEdge's Rules may send messages.
	Rules Rules `json:"rules,omitzero"`
}

// Gateway configures the listeners through which kube-apiserver and Prometheus reach the nodes; a listener without an address is off.
type Gateway struct {
	// Socket is a unix socket for HTTP CONNECT, mode 0600, for a kube-apiserver on the same host.
	Socket string `json:"socket,omitempty"`
	// Address is host:port for HTTP CONNECT over TLS 1.3, with client certificates of ClientCAFile.
	Address string `json:"address,omitempty"`
	// ScrapeAddress is host:port for HTTPS requests of nodes' metrics, with bearer tokens of Kubernetes.
	ScrapeAddress string `json:"scrapeAddress,omitempty"`
	// MetricsHost is the host by which metrics-server reaches ScrapeAddress; with "" metrics-server gets no address for edge nodes.
	MetricsHost string `json:"metricsHost,omitempty"`
	// TrustedNetworks are networks, such as 10.20.0.0/16, in which a gateway's own report decides the addresses of its pods and its host.
	// They are for pods with addresses outside their Node's podCIDR and for pods in the host's network.
	TrustedNetworks []string `json:"trustedNetworks,omitempty"`
	// Direct connects a kube-apiserver that uses no proxy.
	Direct Direct `json:"direct,omitzero"`
	// ReusePort lets several cloudcores of one user on one host listen on the same addresses.
	ReusePort bool `json:"reusePort,omitempty"`
	// CertFile and KeyFile serve both addresses. Certificate files are read again for each connection.
	CertFile     string `json:"certFile,omitempty"`
	KeyFile      string `json:"keyFile,omitempty"`
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// KubeletCAFile signs the kubelets' serving certificates; KubeletCertFile and KubeletKeyFile are cloudcore's client certificate for
	// reading their metrics.
	KubeletCAFile   string `json:"kubeletCAFile,omitempty"`
	KubeletCertFile string `json:"kubeletCertFile,omitempty"`
	KubeletKeyFile  string `json:"kubeletKeyFile,omitempty"`
}

// EdgeCore is the configuration file of edgecore.
type EdgeCore struct {
	// Node is the name of this gateway's Kubernetes Node.
	Node string `json:"node"`
	// Dir holds all state of the node; it must survive a reboot.
	Dir      string   `json:"dir"`
	Hub      EdgeHub  `json:"hub"`
	Runtime  Runtime  `json:"runtime"`
	Kubelet  Kubelet  `json:"kubelet"`
	LocalAPI LocalAPI `json:"localAPI"`
	Devices  Devices  `json:"devices,omitzero"`
	// ServiceBus says which services of the gateway Rules may call.
	ServiceBus ServiceBus `json:"serviceBus,omitzero"`
	// History is a file to which each change of the store and each ack is appended, for fault tests; "" writes none.
	History string `json:"history,omitempty"`
	// Listen is the address of /metrics, /livez and /readyz; the default is 127.0.0.1:10281.
	Listen string `json:"listen,omitempty"`
	// LogLevel is debug, info, warn or error; the default is info.
	LogLevel string `json:"logLevel,omitempty"`
}

// Runtime selects the container runtime.
type Runtime struct {
	// Endpoint is the CRI socket, such as unix:///run/containerd/containerd.sock. With Hollow it may be empty.
	Endpoint string `json:"endpoint,omitempty"`
	// Hollow runs no containers: edgecore starts a simulated CRI runtime of its own.
	Hollow bool `json:"hollow,omitempty"`
}

// Kubelet holds a gateway's settings for its kubelet; a zero field means the kubelet's own default.
type Kubelet struct {
	// External says that a stock kubelet of this machine uses the local API, at LocalAPI.Address; edgecore then runs none. Of the settings
	// below only Address and Port apply, as the address of that kubelet.
	External bool `json:"external,omitempty"`
	// CgroupDriver is cgroupfs or systemd; the default is cgroupfs.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
	// CgroupRoot is the parent cgroup of pods.
	CgroupRoot string `json:"cgroupRoot,omitempty"`
	// NodeIP is the address that the Node reports; it must be on an interface and not loopback.
	NodeIP string            `json:"nodeIP,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// RegisterWithTaints are on the Node from its first write; the cluster owns later changes.
	RegisterWithTaints []corev1.Taint `json:"registerWithTaints,omitempty"`
	// StaticPodPath is a folder of pod manifests; the default is the folder manifests below Dir.
	StaticPodPath string `json:"staticPodPath,omitempty"`
	// Port of the kubelet's own API, default 10250, also in the tunnel; it has no read-only port.
	Port int32 `json:"port,omitempty"`
	// Address of the kubelet's API; the default is 127.0.0.1, because the cloud connects through the tunnel.
	Address string `json:"address,omitempty"`
	MaxPods int32  `json:"maxPods,omitempty"`
	// CertFile and KeyFile are the kubelet's serving certificate; without them the kubelet requests one from the cluster, and its
	// successors.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ClientCAFile is the CA of the clients of the kubelet's API.
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// Settings are fields of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1); they replace edgecore's settings.
	Settings map[string]any `json:"settings,omitempty"`
}

// LocalAPI opens the node's Kubernetes API to other programs on the gateway. In memory it always serves the kubelet.
type LocalAPI struct {
	// Socket is the path of a unix socket, mode 0600; "" means api.sock below Dir.
	Socket string `json:"socket,omitempty"`
	// SocketGroup is a group, by name or number, whose members may open the socket too, which gives them full control of the gateway; ""
	// means no group. The socket then needs its own folder, outside of Dir.
	SocketGroup string `json:"socketGroup,omitempty"`
	// Address is a loopback host:port for TLS with client certificates or tokens; "" opens none.
	Address      string `json:"address,omitempty"`
	CertFile     string `json:"certFile,omitempty"`
	KeyFile      string `json:"keyFile,omitempty"`
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// Pods configures the access of the gateway's pods.
	Pods Pods `json:"pods,omitzero"`
}

// The default addresses of the processes' own listeners: adjacent ports that Kubernetes itself does not use.
const (
	defaultCloudListen = "127.0.0.1:10280"
	defaultEdgeListen  = "127.0.0.1:10281"
	defaultReplicas    = 3

	defaultKubeletAddress = "127.0.0.1"
	defaultKubeletPort    = 10250
)

// EdgeMetricsPort is the tunnel port that leads to a node's own edgecore listener, whatever its address.
const EdgeMetricsPort = 10281

// EdgeDevicePort is the tunnel port of edgecore's part for devices. Nothing listens there on the gateway, and cloudcore's gateway opens it to nobody: its one
// user is cloud/devicecall, which has decided who may.
const EdgeDevicePort = 10282

// ParseCloudCore parses a configuration file of cloudcore and sets defaults. hostname is the default ID.
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
	c.Leases.setDefaults()
	c.DeletionGuard.setDefaults()
	c.Restore.setDefaults()
	c.Identity.setDefaults(c.Hub)
	c.Devices.setDefaults()
	return c, c.Validate()
}

// Validate joins all errors.
func (c CloudCore) Validate() error {
	return errors.Join(
		requireField("id", c.ID),
		c.Hub.validate(),
		validateOneOf("replicas", c.Replicas, 1, 3, 5),
		validateHostPort("listen", c.Listen),
		c.Leases.validate(),
		c.DeletionGuard.validate(),
		c.validateTombstoneAge(),
		c.Restore.validate(),
		c.Inspect.validate(),
		c.Gateway.validate(),
		c.Scopes.validate(),
		c.Links.validate(),
		c.Identity.validate(),
		c.Certificates.validate(),
		c.Devices.validate(),
		c.Rules.validate(c.Inspect),
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

// minTombstoneAge is above the 15 s after which a decision is no longer sent.
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

// ParseEdgeCore parses a configuration file of edgecore and sets defaults.
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
	c.Devices.setDefaults()
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

// Validate joins all errors.
func (c EdgeCore) Validate() error {
	faults := []error{requireField("node", c.Node), requireField("dir", c.Dir), c.Hub.validate(), validateHostPort("listen", c.Listen), c.ServiceBus.validate()}
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		faults = append(faults, fmt.Errorf("dir: %q is not an absolute path", c.Dir))
	}
	if p := c.Kubelet.Port; p == EdgeMetricsPort || p == EdgeDevicePort || p == EdgeServicePort {
		faults = append(faults, fmt.Errorf("kubelet.port: %d is edgecore's own in the tunnel", c.Kubelet.Port))
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
	faults = append(faults, c.LocalAPI.Pods.validate(), validateTaints(c.Kubelet.RegisterWithTaints), c.Devices.validate())
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
