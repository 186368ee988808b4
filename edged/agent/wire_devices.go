package agent

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/edged/devices/methodcall"
	"github.com/frond-edge/frond/edged/servicebus"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/tunnel"
)

// buildDevices creates the part for the gateway's devices; nil if there shall be none.
func buildDevices(f *foundation, down downward, sink *outbox.Outbox) (*devices.Devices, error) {
	if !f.cfg.Devices.Enabled() {
		return nil, nil //nolint:nilnil // none is no error
	}
	return devices.New(devices.Config{
		Node: f.cfg.Node, Dir: filepath.Join(f.cfg.Dir, "devices"), Settings: f.cfg.Devices, Local: f.local, Cloud: f.nc, Link: down.gate,
		Store: down.store.Store, Reports: sink, CgroupRoot: f.cfg.Kubelet.CgroupRoot, Metrics: f.metrics,
		LowSpace: func() bool { return f.leaf.DiskSpace().Low },
	}, f.log.Named("devices"))
}

// devicesCondition returns the Node's condition about devices: how they are served, and what may be sent of theirs. fault is why the own broker does not listen.
func devicesCondition(d config.Devices, fault error) corev1.NodeCondition {
	if !d.Enabled() {
		return corev1.NodeCondition{
			Type: names.ConditionDevices, Status: corev1.ConditionFalse, Reason: names.ReasonNotServed, Message: "devices.mqtt.mode of edgecore is off",
		}
	}
	if fault != nil {
		return corev1.NodeCondition{
			Type: names.ConditionDevices, Status: corev1.ConditionFalse, Reason: names.ReasonBrokerNotStarted, Message: "the MQTT broker does not start: " + fault.Error(),
		}
	}
	mappers := "off"
	if d.DMI.Enabled {
		mappers = "on"
	}
	limit := func(bytesPerSecond int) string {
		if bytesPerSecond == 0 {
			return "no limit"
		}
		return fmt.Sprintf("at most %d bytes a second", bytesPerSecond)
	}
	return corev1.NodeCondition{
		Type: names.ConditionDevices, Status: corev1.ConditionTrue, Reason: names.ReasonServed,
		Message: fmt.Sprintf("MQTT %s, mappers %s; of the link take samples: %s, messages: %s",
			d.MQTT.Mode, mappers, limit(d.Telemetry.BytesPerSecond), limit(d.Messages.BytesPerSecond)),
	}
}

// deviceParts returns the parts that run what buildDevices has made, with calls of methods, which come through tunnels.
func deviceParts(f *foundation, st *store.Store, part *devices.Devices, tunnels *tunnel.Server) ([]lifecycle.Part, error) {
	if part == nil {
		return nil, nil
	}
	l, err := tunnels.Listen(config.EdgeDevicePort)
	if err != nil {
		return nil, fmt.Errorf("tunnels for calls of devices: %w", err)
	}
	calls := methodcall.New(part, methodcall.PodLocator{
		Identity: part.IdentityOf, RuntimeAddresses: runtimeAddresses(f.cfg), Pods: func() []store.Entry {
			list, _ := st.List("", "pods", "")
			return list
		},
	}, f.log.Named("devicecall"))
	return []lifecycle.Part{
		{Name: "devices", Start: part.Start},
		{Name: "device calls", Start: func(ctx context.Context) error { return calls.Serve(ctx, l) }},
	}, nil
}

// serviceParts returns the part that calls services of the gateway for rules, none if no service may be called.
func serviceParts(f *foundation, tunnels *tunnel.Server) ([]lifecycle.Part, error) {
	ports := f.cfg.ServiceBus.Numbers()
	if len(ports) == 0 {
		return nil, nil
	}
	l, err := tunnels.Listen(config.EdgeServicePort)
	if err != nil {
		return nil, fmt.Errorf("tunnels for calls of services: %w", err)
	}
	calls := servicebus.New(ports, f.log.Named("servicebus"))
	return []lifecycle.Part{{Name: "service calls", Start: func(ctx context.Context) error { return calls.Serve(ctx, l) }}}, nil
}
