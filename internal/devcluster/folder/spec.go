package folder

import (
	"errors"
	"fmt"
	"os/exec"
)

// ErrNoCluster says that there is no cluster in a folder.
var ErrNoCluster = errors.New("no cluster here")

// Runtime is how gateways run pods.
type Runtime string

// The runtimes. Containerd needs root.
const (
	Containerd Runtime = "containerd"
	Hollow     Runtime = "hollow"
)

// Spec is the size and kind of a cluster. A zero field keeps the present value, or takes the default for a new cluster (2 edges,
// 2 cloudcores, 3 hubs, containerd if root).
type Spec struct {
	Edges      int     `json:"edges"`
	Cloudcores int     `json:"cloudcores"`
	Hubs       int     `json:"hubs"`
	Runtime    Runtime `json:"runtime"`
	// Partitions is the number of streams of desired state, 0 for one. Chosen once.
	Partitions int `json:"partitions,omitempty"`
	// History makes each gateway record the changes of its store (package history) in a file beside its data. Chosen once.
	History bool `json:"history,omitempty"`
	// Direct makes the apiserver call nodes at ports of the cloudcores, without a proxy. Chosen once.
	Direct bool `json:"direct,omitempty"`
	// NoMetrics leaves out metrics-server. Chosen once.
	NoMetrics bool `json:"noMetrics,omitempty"`
	// KubeProxy runs upstream's kube-proxy beside each edgecore, with the gateway's own API. It can be added later. It needs
	// Containerd and the program nft.
	KubeProxy bool `json:"kubeProxy,omitempty"`
	// Services adds to KubeProxy, which it includes, CoreDNS on each gateway and routes between the gateways' pods. Chosen once.
	Services bool `json:"services,omitempty"`
	// Devices runs an MQTT broker on each gateway, for apps without a user, and the socket for mappers. It can be added later.
	Devices bool `json:"devices,omitempty"`
	// Kubernetes is the minor version of an older control plane, such as "1.36"; empty means the version that Frond is built with. Chosen once.
	Kubernetes string `json:"kubernetes,omitempty"`
}

// MergeSpec merges the requested spec into the existing one. Root decides the default runtime.
func MergeSpec(have, want Spec, root bool) (Spec, error) {
	fresh := have == Spec{}
	if fresh {
		have = Spec{Edges: 2, Cloudcores: 2, Hubs: 3, Runtime: Hollow, Partitions: want.Partitions, History: want.History, NoMetrics: want.NoMetrics, Direct: want.Direct, Services: want.Services, Kubernetes: want.Kubernetes}
		if root {
			have.Runtime = Containerd
		}
	}
	var errs []error
	merge := func(name string, have *int, want int, fixed bool) {
		switch {
		case want == 0 || want == *have:
		case want < 0:
			errs = append(errs, fmt.Errorf("%s: %d is not a number of %s", name, want, name))
		case !fresh && (fixed || want < *have):
			errs = append(errs, fmt.Errorf("%s: the cluster has %d and cannot become %d: run down first", name, *have, want))
		default:
			*have = want
		}
	}
	merge("edges", &have.Edges, want.Edges, false)
	merge("cloudcores", &have.Cloudcores, want.Cloudcores, false)
	merge("hubs", &have.Hubs, want.Hubs, true)
	merge("partitions", &have.Partitions, want.Partitions, true)
	switch {
	case want.Runtime == "" || want.Runtime == have.Runtime:
	case want.Runtime != Containerd && want.Runtime != Hollow:
		errs = append(errs, fmt.Errorf("runtime: %q is neither %s nor %s", want.Runtime, Containerd, Hollow))
	case !fresh:
		errs = append(errs, fmt.Errorf("runtime: the cluster has %s and cannot become %s: run down first", have.Runtime, want.Runtime))
	case want.Runtime == Containerd && !root:
		errs = append(errs, errors.New("runtime: containerd needs root: use sudo, or --runtime hollow"))
	default:
		have.Runtime = want.Runtime
	}
	if want.Services && !have.Services {
		errs = append(errs, errors.New("services: the cluster was made without, and its pods know no DNS server: run down first"))
	}
	if want.Kubernetes != "" && want.Kubernetes != have.Kubernetes {
		errs = append(errs, fmt.Errorf("kubernetes: the cluster's control plane cannot become %s: run down first", want.Kubernetes))
	}
	have.KubeProxy = have.KubeProxy || want.KubeProxy || have.Services
	have.Devices = have.Devices || want.Devices
	errs = append(errs, have.checkNft())
	if have.Hubs != 1 && have.Hubs != 3 {
		errs = append(errs, fmt.Errorf("hubs: %d servers make no useful quorum: choose 1 or 3", have.Hubs))
	}
	return have, errors.Join(errs...)
}

// ErrMissingNft names the program that kube-proxy lacks on this machine.
var ErrMissingNft = errors.New("kube-proxy needs the program nft: apt-get install nftables")

// checkNft checks for the program that kube-proxy calls, if the spec has kube-proxy.
func (s Spec) checkNft() error {
	if !s.KubeProxy {
		return nil
	}
	if s.Runtime != Containerd {
		return errors.New("--services and --kube-proxy need gateways with a network of their own: use --runtime containerd, as root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return ErrMissingNft
	}
	return nil
}
