package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/edged/diskmonitor"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/edged/nodecondition"
	"github.com/frond-edge/frond/edged/nodeidentity"
	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/localapi"
)

// openTimeout limits opening the store: 500 objects take 4 ms on the measured disk.
const openTimeout = 2 * time.Minute

// foundation is what all parts are made of.
type foundation struct {
	cfg      config.EdgeCore
	metrics  *prometheus.Registry
	log      *zap.Logger
	identity *nodeidentity.Identity
	leaf     *leaf.Server
	link     leafLink
	nc       *nats.Conn
	// local is for the node's own streams: its inboxes do not cross the link.
	local *nats.Conn
	// bulk is a separate connection for tunnels, so that they never delay a delivery.
	bulk *nats.Conn
}

// assembleParts creates all parts, each after those that it calls, and returns them in the order in which they start.
func assembleParts(ctx context.Context, f *foundation) ([]lifecycle.Part, error) {
	octx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	st, sink, err := openStore(octx, f)
	if err != nil {
		return nil, err
	}
	down, err := buildDelivery(f, st)
	if err != nil {
		return nil, err
	}
	up := cloudUpstream{node: f.cfg.Node, nc: f.nc, isPending: down.delivery.IsPending}
	k, err := newKubeletCert(f, up)
	if err != nil {
		return nil, err
	}
	if err := f.metrics.Register(newCertExpiry(f, k.cert)); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	guarded := diskmonitor.GuardedReporter{Reporter: sink, CheckWritable: diskmonitor.WritableCheck(f.leaf.DiskSpace)}
	part, err := buildDevices(f, down, sink)
	if err != nil {
		return nil, err
	}
	api, err := localapi.New(localAPIConfig(f, down.delivery, k.cert, part), st, up, guarded, f.log)
	if err != nil {
		return nil, err
	}
	kubeletReady, kubeletParts, err := buildKubelet(f, k, api, st) //nolint:contextcheck // New starts nothing
	if err != nil {
		return nil, err
	}
	conditions, err := nodecondition.NewWriter(f.cfg.Node, api.ClientConfig())
	if err != nil {
		return nil, err
	}
	disk, err := diskmonitor.New(f.leaf, sink, conditions, f.metrics, f.log.Named("storage"))
	if err != nil {
		return nil, err
	}
	messaging, err := buildMessaging(f, down, sink, api, &kubeletHealth{leaseRenewed: api.LeaseRenewed, ready: kubeletReady}, disk)
	if err != nil {
		return nil, err
	}
	tunnels, forDevices, err := buildTunnels(f, st, k.cert, part)
	if err != nil {
		return nil, err
	}
	parts := slices.Concat([]lifecycle.Part{
		{Name: "store", Start: func(ctx context.Context) error { <-ctx.Done(); return st.Close() }},
		{Name: "localapi", Start: api.Start, Ready: api.Ready()},
		newSocketPart(f.cfg.LocalAPI),
		{Name: "tunnels", Start: tunnels.Start},
	}, messaging)
	return slices.Concat(parts, conditionParts(f, conditions, part), forDevices, kubeletParts, []lifecycle.Part{buildJobs(f, down, sink)}), nil
}

// conditionParts returns the parts that keep conditions of the Node which follow from the identity and the configuration.
func conditionParts(f *foundation, to *nodecondition.Writer, part *devices.Devices) []lifecycle.Part {
	keep := func(name string, write func(context.Context) error) lifecycle.Part {
		return lifecycle.Part{Name: name + " condition", Start: func(ctx context.Context) error {
			nodecondition.Keep(ctx, write, f.log.Named(name))
			return nil
		}}
	}
	parts := []lifecycle.Part{keep("devices", func(ctx context.Context) error {
		if part == nil {
			return to.Replace(ctx, devicesCondition(f.cfg.Devices, nil))
		}
		return to.Ensure(ctx, devicesCondition(f.cfg.Devices, part.BrokerFault()))
	})}
	if f.identity.Renewer() != nil {
		parts = append(parts, keep("identity", func(ctx context.Context) error { return to.Ensure(ctx, f.identity.Condition()) }))
	}
	return parts
}

// newCertExpiry returns the metric of the certificates that this node presents or trusts; cert is nil for a kubelet outside.
func newCertExpiry(f *foundation, cert *kubelet.ServingCert) *certs.Expiry {
	ends := certs.FileExpiries(map[string]string{
		"hub-ca": f.identity.HubCAFile(), "local-api": f.cfg.LocalAPI.CertFile, "local-api-client-ca": f.cfg.LocalAPI.ClientCAFile,
		"kubelet-client-ca": f.cfg.Kubelet.ClientCAFile, "mqtt": f.cfg.Devices.MQTT.TLS.CertFile, "mqtt-client-ca": f.cfg.Devices.MQTT.TLS.ClientCAFile,
	})
	if cert != nil {
		ends["kubelet"] = func() (time.Time, error) {
			if now := cert.Current(); now != nil {
				return now.NotAfter, nil
			}
			return time.Time{}, errors.New("the kubelet has no certificate yet")
		}
	}
	return certs.NewExpiry(ends)
}
