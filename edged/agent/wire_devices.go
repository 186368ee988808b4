package agent

import (
	"net/http"
	"path/filepath"

	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/outbox"
)

// buildDevices creates the part for the gateway's devices, and what serves them on the unix socket; both are nil if there shall be none.
func buildDevices(f *foundation, down downward, sink *outbox.Outbox) ([]lifecycle.Part, http.Handler, error) {
	if !f.cfg.Devices.Enabled() {
		return nil, nil, nil
	}
	part, err := devices.New(devices.Config{
		Node: f.cfg.Node, Dir: filepath.Join(f.cfg.Dir, "devices"), Settings: f.cfg.Devices, Local: f.local, Cloud: f.nc, Link: down.gate,
		Store: down.store.Store, Reports: sink, CgroupRoot: f.cfg.Kubelet.CgroupRoot, Metrics: f.metrics,
		LowSpace: func() bool { return f.leaf.DiskSpace().Low },
	}, f.log.Named("devices"))
	if err != nil {
		return nil, nil, err
	}
	return []lifecycle.Part{{Name: "devices", Start: part.Start}}, part.Handler(), nil
}
