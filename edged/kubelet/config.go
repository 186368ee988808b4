package kubelet

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Config configures a Kubelet. A zero optional field means its default.
type Config struct {
	Node            string // name of the Kubernetes Node; required
	Dir             string // the kubelet's folder: pods, plugins, state; absolute, required
	RuntimeEndpoint string // CRI, as unix:///path; required

	// Hollow selects a runtime without containers: no cgroups, no mounts, no statistics of the machine's containers, and
	// probes that always succeed. It needs no privilege.
	Hollow bool

	NodeIP  string            // address the Node reports; must be on an interface and not loopback; default: found by the kubelet
	Labels  map[string]string // of the Node, set on registration; kubernetes.io names only as far as a kubelet may set them
	Taints  []corev1.Taint    // of the Node, from its first write
	MaxPods int               // default 110

	CgroupDriver string // for runtimes that do not report it (containerd 1.6): cgroupfs or systemd; default cgroupfs
	CgroupRoot   string // cgroup below which all pods run, created if missing; default "/"; two nodes on one machine need two

	StaticPodPath string // folder of static pod manifests; default none
	PodLogsDir    string // default Dir/pod-logs; two nodes on one machine need two

	Address      string // the kubelet listens here; default all addresses
	Port         int    // default 10250
	CertFile     string // serving certificate, read for each connection; default: one that its ServingCert requests
	KeyFile      string // its key
	ClientCAFile string // CAs of client certificates; default none, only tokens

	// PodCertificates keeps the certificates of projected volumes over a restart without a link; nil: they are created anew.
	PodCertificates PodCertificateStore

	ClusterDNS    []string // for pods with dnsPolicy ClusterFirst; default none
	ClusterDomain string   // default none

	// DropIn is a KubeletConfiguration (kubelet.config.k8s.io/v1beta1, YAML or JSON) merged over all of the above,
	// as the kubelet merges the files of its --config-dir. An unknown key is an error.
	DropIn []byte

	// Verbosity is the klog level (-v) that reaches the log, as Debug when above 0.
	Verbosity int
}

// Validate reports all faults that can be found without examining the machine.
func (c Config) Validate() error {
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf(field+": "+format, args...))
	}
	if msgs := validation.IsDNS1123Subdomain(c.Node); len(msgs) > 0 {
		fault("node", "%q: %s", c.Node, strings.Join(msgs, ", "))
	}
	if !filepath.IsAbs(c.Dir) || filepath.Clean(c.Dir) != c.Dir {
		fault("dir", "%q is not a clean absolute path", c.Dir)
	}
	if !strings.HasPrefix(c.RuntimeEndpoint, "unix:///") {
		fault("runtimeEndpoint", "%q does not begin with unix:///", c.RuntimeEndpoint)
	}
	if c.NodeIP != "" {
		if ip, err := netip.ParseAddr(c.NodeIP); err != nil || ip.IsLoopback() || ip.IsUnspecified() || ip.IsMulticast() || ip.IsLinkLocalUnicast() {
			fault("nodeIP", "%q is not an address a node can have", c.NodeIP)
		}
	}
	if c.Port < 0 || c.Port > 65535 {
		fault("port", "%d is not a port", c.Port)
	}
	if c.MaxPods < 0 {
		fault("maxPods", "%d is negative", c.MaxPods)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		fault("certFile", "certFile and keyFile go together")
	}
	if c.CgroupRoot != "" && !filepath.IsAbs(c.CgroupRoot) {
		fault("cgroupRoot", "%q does not begin with /", c.CgroupRoot)
	}
	return errors.Join(errs...)
}
