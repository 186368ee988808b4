package devices

import (
	"cmp"
	"encoding/json"
	"slices"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/leaf/store"
)

// objects reads Devices and models from the gateway's store.
type objects struct {
	node  string
	store *store.Store
	log   *zap.Logger
}

// device returns a Device of this node, nil if there is none, with its model, nil if that is not there, and the model's name.
func (o objects) device(id types.NamespacedName) (*devices.Device, *devices.DeviceModel, types.NamespacedName) {
	device, modelID := &devices.Device{}, types.NamespacedName{Namespace: id.Namespace}
	if found := o.read(keyOf(devices.DevicesResource, id), device); !found || device.Spec.NodeName != o.node {
		return nil, nil, modelID
	}
	if ref := device.Spec.DeviceModelRef; ref != nil {
		modelID.Name = ref.Name
		model := &devices.DeviceModel{}
		if o.read(keyOf(devices.DeviceModelsResource, modelID), model) {
			return device, model, modelID
		}
	}
	return device, nil, modelID
}

// read reports whether the store has an object that can be decoded.
func (o objects) read(key wire.Key, into any) bool {
	entry, err := o.store.Get(key)
	if err != nil {
		return false
	}
	if err := json.Unmarshal(entry.Object, into); err != nil {
		o.log.Error("object unreadable, taken as absent", zap.String("object", key.Human()), zap.Error(err))
		return false
	}
	return true
}

// localView shows the devices of the gateway as they are now. It implements override.Source.
type localView struct {
	objects
	reporter  *reporter
	overrides Overrides
}

// Devices implements override.Source.
func (v localView) Devices() []deviceview.Device {
	entries, _ := v.store.List(devices.Group, devices.DevicesResource, "")
	all := make([]deviceview.Device, 0, len(entries))
	for _, entry := range entries {
		if _, _, view, ok := v.Device(idOf(entry.Key)); ok {
			all = append(all, view)
		}
	}
	slices.SortFunc(all, func(a, b deviceview.Device) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Device implements override.Source.
func (v localView) Device(id types.NamespacedName) (*devices.Device, *devices.DeviceModel, deviceview.Device, bool) {
	device, model, _ := v.device(id)
	if device == nil {
		return nil, nil, deviceview.Device{}, false
	}
	view := deviceview.New(device, v.status(device))
	overrides := v.overrides.Of(id, device.UID) // the twin has them a moment later
	for i := range view.Properties {
		p := &view.Properties[i]
		p.Override = nil
		if o, ok := overrides[p.Name]; ok {
			p.Override = &o
		}
	}
	return device, model, view, true
}

// status returns what the twin has of a Device, nil if nothing yet.
func (v localView) status(device *devices.Device) *devices.DeviceStatus {
	twin, ok := v.reporter.twin(types.NamespacedName{Namespace: device.Namespace, Name: device.Name})
	if !ok || twin.Spec.UID != device.UID {
		return nil
	}
	status, err := devicetwin.Status(twin.Spec, twin.Record, twin.Conditions)
	if err != nil {
		v.log.Error("status of a device unreadable", zap.Error(err))
		return nil
	}
	return &devices.DeviceStatus{Status: status}
}
