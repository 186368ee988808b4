package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/toolchain"
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
	// Kubernetes is the minor version of an older control plane, such as "1.36"; empty means the version that Frond is built with. Chosen once.
	Kubernetes string `json:"kubernetes,omitempty"`
}

// clusterState is the content of state.json.
type clusterState struct {
	Spec Spec `json:"spec"`
	// Programs are the programs of the last Up.
	Programs  toolchain.Paths            `json:"programs"`
	Ports     map[string]int             `json:"ports"`
	Processes map[string]daemon.Identity `json:"processes"`
}

const (
	// portBase and portSpan bound the ports that are tried. They lie below Linux' range for outgoing connections
	// (from 32768) and for NodePorts (from 30000), so that nothing takes a port while its component is down.
	portBase = 20000
	portSpan = 10000
)

func loadState(path string) (clusterState, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return clusterState{}, ErrNoCluster
	} else if err != nil {
		return clusterState{}, fmt.Errorf("read state: %w", err)
	}
	var s clusterState
	if err := json.Unmarshal(data, &s); err != nil {
		return clusterState{}, fmt.Errorf("read state %s: %w", path, err)
	}
	return s, nil
}

func (s clusterState) save(path string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := renameio.WriteFile(path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// mergeSpec merges the requested spec into the existing one. Root decides the default runtime.
func mergeSpec(have, want Spec, root bool) (Spec, error) {
	fresh := have == Spec{}
	if fresh {
		have = Spec{Edges: 2, Cloudcores: 2, Hubs: 3, Runtime: Hollow, History: want.History, NoMetrics: want.NoMetrics, Direct: want.Direct, Services: want.Services, Kubernetes: want.Kubernetes}
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
	errs = append(errs, have.checkNft())
	if have.Hubs != 1 && have.Hubs != 3 {
		errs = append(errs, fmt.Errorf("hubs: %d servers make no useful quorum: choose 1 or 3", have.Hubs))
	}
	return have, errors.Join(errs...)
}

// portNames lists every port that a cluster of this spec listens on, in the order of allocation.
func portNames(s Spec) []string {
	names := []string{"etcd", "etcd-peer", "apiserver"}
	for _, h := range numberedNames("hub", s.Hubs) {
		names = append(names, h, h+"-cluster", h+"-leaf")
	}
	for _, c := range numberedNames("cloudcore", s.Cloudcores) {
		names = append(names, c, inspectPort(c))
	}
	for _, e := range numberedNames("edge", s.Edges) {
		names = append(names, e, e+"-api")
		if s.Runtime == Hollow {
			names = append(names, e+"-kubelet")
			for _, h := range numberedNames("hub", s.Hubs) {
				names = append(names, e+"-"+h)
			}
		}
	}
	names = append(names, "egress", "scrape") // shared by all cloudcores
	if s.Direct {
		names = append(names, directPorts(s)...)
	}
	if !s.NoMetrics {
		names = append(names, metricsServer)
	}
	return names
}

// choosePorts allocates a free port for each name without one. seed spreads clusters over the range.
func choosePorts(have map[string]int, names []string, seed uint32, free func(port int) bool) (map[string]int, error) {
	ports, taken := map[string]int{}, map[int]bool{}
	for name, p := range have {
		ports[name], taken[p] = p, true
	}
	next := int(seed % portSpan)
	for _, name := range names {
		if ports[name] != 0 {
			continue
		}
		for tries := 0; ; tries++ {
			if tries == portSpan {
				return nil, fmt.Errorf("choose a port for %s: none between %d and %d is free", name, portBase, portBase+portSpan-1)
			}
			p := portBase + next
			next = (next + 1) % portSpan
			if !taken[p] && free(p) {
				ports[name], taken[p] = p, true
				break
			}
		}
	}
	return ports, nil
}

// portFree reports whether no process listens on a port of 127.0.0.1.
func portFree(port int) bool {
	l, err := net.Listen("tcp", loopbackAddress(port)) //nolint:noctx // an address, not a name: nothing to wait for
	if err != nil {
		return false
	}
	return l.Close() == nil
}

func loopbackAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// numberedNames returns kind-1 … kind-n.
func numberedNames(kind string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = kind + "-" + strconv.Itoa(i+1)
	}
	return names
}

// lockPoll is the retry interval of a waiting caller: flock cannot be interrupted.
const lockPoll = 100 * time.Millisecond

// lockFolder takes the folder's lock. The kernel releases it when the process ends.
func lockFolder(ctx context.Context, path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make folder: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another frond that holds %s: %w", path, context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}
