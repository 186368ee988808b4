package agent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/edged/nodenames"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/store"
)

// leaseHealthyFor is the lease duration that edged gives the kubelet; after an older renewal the kubelet counts as hung.
const leaseHealthyFor = 40 * time.Second

// kubeletCert is the certificate of the kubelet's port, and the source of its names. Both are nil if another kubelet uses the local API.
type kubeletCert struct {
	cert  *kubelet.ServingCert
	names *nodenames.Resolver
}

func newKubeletCert(f *foundation, up cloudUpstream) (k kubeletCert, err error) {
	if f.cfg.Kubelet.External {
		return k, nil
	}
	k.names = nodenames.New(f.cfg.Node, up.Do, f.link, f.log.Named("names"))
	k.cert, err = kubelet.NewServingCert(kubelet.ServingCertConfig{
		Node: f.cfg.Node, Dir: kubeletDir(f.cfg), NodeNames: k.names.List, Now: f.identity.CloudNow,
	}, f.log)
	return k, err
}

// buildKubelet creates the kubelet's part, after the hollow runtime's if there are no containers, and returns the kubelet's
// ready channel. Both are missing if another kubelet uses the local API: its state is known from the lease that it renews.
func buildKubelet(f *foundation, of kubeletCert, api *localapi.Server, st *store.Store) (ready <-chan struct{}, parts []lifecycle.Part, err error) {
	k := f.cfg.Kubelet
	if k.External {
		return nil, nil, nil
	}
	if f.cfg.Runtime.Hollow && f.cfg.Runtime.Endpoint == "" {
		runtime, err := hollow.New(hollow.Config{
			Socket: hollowSocket(f.cfg), Dir: f.cfg.Dir, PodCIDR: lastPodCIDR(st, f.cfg.Node),
		}, f.log.Named("hollow"))
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, lifecycle.Part{Name: "hollow", Start: runtime.Start, Ready: runtime.Ready()})
	}
	settings, err := kubeletDropIn(k.Settings)
	if err != nil {
		return nil, nil, err
	}
	embedded, err := kubelet.New(kubelet.Config{
		Node: f.cfg.Node, Dir: kubeletDir(f.cfg), RuntimeEndpoint: runtimeEndpoint(f.cfg), Hollow: f.cfg.Runtime.Hollow,
		NodeIP: k.NodeIP, Labels: k.Labels, Taints: k.RegisterWithTaints, MaxPods: int(k.MaxPods), CgroupDriver: k.CgroupDriver, CgroupRoot: k.CgroupRoot,
		StaticPodPath: k.StaticPodPath, Address: k.Address, Port: int(k.Port),
		CertFile: k.CertFile, KeyFile: k.KeyFile, ClientCAFile: cmp.Or(k.ClientCAFile, f.identity.ClusterCAFile()), DropIn: settings,
		PodCertificates: api,
	}, of.cert, api.ClientConfig(), f.log)
	if err != nil {
		return nil, nil, err
	}
	return embedded.Ready(), append(parts, lifecycle.Part{Name: "names", Start: of.names.Start},
		lifecycle.Part{Name: "kubelet", Start: embedded.Start, Ready: embedded.Ready()}), nil
}

// runtimeEndpoint returns the runtime's CRI socket: the configured one, or the hollow runtime's.
func runtimeEndpoint(cfg config.EdgeCore) string {
	if cfg.Runtime.Hollow && cfg.Runtime.Endpoint == "" {
		return "unix://" + hollowSocket(cfg)
	}
	return cfg.Runtime.Endpoint
}

// kubeletDropIn returns the gateway's changes to the kubelet's defaults, and then the operator's. A changed ConfigMap reaches its
// volumes at a pod's next sync: with a gateway's few pods, a sync each 10 s instead of 60 s has no measurable cost. The kubelet
// also gets objects from the local API, 0.1 ms away, when it needs them: watching 1,000 of them costs 50 MB.
func kubeletDropIn(operator map[string]any) ([]byte, error) {
	settings := map[string]any{"syncFrequency": "10s", "configMapAndSecretChangeDetectionStrategy": "Get"}
	maps.Copy(settings, operator)
	data, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("kubelet.settings: %w", err)
	}
	return data, nil
}

// lastPodCIDR returns the podCIDR of a node from its store, "" if it is not known. The hollow runtime starts with it: its
// pods start before the kubelet sends it, and addresses outside of the node's range may belong to another node too.
func lastPodCIDR(st *store.Store, node string) string {
	entry, err := st.Get(wire.Key{Resource: "nodes", Name: node})
	if err != nil {
		return ""
	}
	var n corev1.Node
	if json.Unmarshal(entry.Object, &n) != nil {
		return ""
	}
	if _, err := netip.ParsePrefix(n.Spec.PodCIDR); err != nil {
		return ""
	}
	return n.Spec.PodCIDR
}

// kubeletHealth determines whether the kubelet is alive.
type kubeletHealth struct {
	leaseRenewed func() time.Time
	ready        <-chan struct{} // nil for a kubelet that is known only by its lease
	once         sync.Once
	readySince   time.Time // guarded by once; when ready was first seen closed
}

// isAlive is true while the kubelet renews its lease in time. On a node that has just registered, the kubelet writes the
// first lease only with its second try, 10 s after the start; until then its Ready state counts.
func (p *kubeletHealth) isAlive() bool {
	if time.Since(p.leaseRenewed()) < leaseHealthyFor {
		return true
	}
	select {
	case <-p.ready:
	default:
		return false
	}
	p.once.Do(func() { p.readySince = time.Now() })
	return time.Since(p.readySince) < leaseHealthyFor
}
