package agent

import (
	"path/filepath"

	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/outbox"
)

// buildDevices creates the part for the gateway's devices, if there shall be one.
func buildDevices(f *foundation, down downward, sink *outbox.Outbox) ([]lifecycle.Part, error) {
	if !f.cfg.Devices.Enabled() {
		return nil, nil
	}
	part, err := devices.New(devices.Config{
		Node: f.cfg.Node, Dir: filepath.Join(f.cfg.Dir, "devices"), Settings: f.cfg.Devices, Local: f.local, Cloud: f.nc, Link: down.gate,
		Store: down.store.Store, Reports: sink, CgroupRoot: f.cfg.Kubelet.CgroupRoot, Metrics: f.metrics,
		LowSpace: func() bool { return f.leaf.DiskSpace().Low },
	}, f.log.Named("devices"))
	if err != nil {
		return nil, err
	}
	return []lifecycle.Part{{Name: "devices", Start: part.Start}}, nil
}
