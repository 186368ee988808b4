package devices

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/leaf/store"
)

// Consumer takes the gateway's Devices, as the broker does.
type Consumer interface {
	SetDevice(ctx context.Context, spec devicetwin.Spec) error
	RemoveDevice(ctx context.Context, id types.NamespacedName) error
	DevicesLoaded(ctx context.Context) error
}

// Mappers takes the gateway's Devices and models for its mappers, as dmi.Server does. The objects do not change afterwards.
type Mappers interface {
	SetDevice(device *devices.Device)
	RemoveDevice(id types.NamespacedName)
	SetModel(model *devices.DeviceModel)
	RemoveModel(id types.NamespacedName)
	Synced()
}

// Overrides are the desired values that were set on the gateway, as override.Keeper has them.
type Overrides interface {
	Loaded() <-chan struct{}
	Of(id types.NamespacedName, uid types.UID) map[string]devicetwin.Override
	Wake() <-chan struct{}
	TakeChanged() []types.NamespacedName
}

// follower gives the Devices of the gateway's store to a consumer: those that name this node, each with its model.
type follower struct {
	objects  objects
	consumer Consumer
	// mappers may be nil.
	mappers   Mappers
	overrides Overrides
	// given are the Devices that the consumer has, with their models.
	given map[types.NamespacedName]types.NamespacedName
}

// follow runs until ctx ends, the consumer fails or it was too slow for the store's events.
func (f *follower) follow(ctx context.Context) error {
	select {
	case <-f.overrides.Loaded(): // before, a device would be told the value that an override replaces
	case <-ctx.Done():
		return nil
	}
	modelList, revision := f.objects.store.List(devices.Group, devices.DeviceModelsResource, "") // older than the devices, so that no change is missed
	list, _ := f.objects.store.List(devices.Group, devices.DevicesResource, "")
	changes, err := f.objects.store.Watch(devices.Group, devices.DevicesResource, "", revision)
	if err != nil {
		return fmt.Errorf("watch devices: %w", err)
	}
	defer changes.Stop()
	models, err := f.objects.store.Watch(devices.Group, devices.DeviceModelsResource, "", revision)
	if err != nil {
		return fmt.Errorf("watch models of devices: %w", err)
	}
	defer models.Stop()
	for _, entry := range modelList {
		f.setModel(idOf(entry.Key))
	}
	if err := f.giveAll(ctx, list); err != nil {
		return err
	}
	deviceEvents, modelEvents := changes.Events(), models.Events()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.overrides.Wake():
			for _, id := range f.overrides.TakeChanged() {
				if err := f.setDevice(ctx, id); err != nil {
					return err
				}
			}
		case event, ok := <-deviceEvents:
			if !ok {
				return changes.Err()
			}
			if err := f.setDevice(ctx, idOf(event.Entry.Key)); err != nil {
				return err
			}
		case event, ok := <-modelEvents:
			if !ok {
				return models.Err()
			}
			if err := f.modelChanged(ctx, idOf(event.Entry.Key)); err != nil {
				return err
			}
		}
	}
}

// giveAll gives all Devices of the store, and takes back those that have left it since an earlier follow.
func (f *follower) giveAll(ctx context.Context, list []store.Entry) error {
	ids := slices.Collect(maps.Keys(f.given))
	for _, entry := range list {
		ids = append(ids, idOf(entry.Key))
	}
	for _, id := range ids {
		if err := f.setDevice(ctx, id); err != nil {
			return err
		}
	}
	if err := f.consumer.DevicesLoaded(ctx); err != nil {
		return fmt.Errorf("give devices: %w", err)
	}
	if f.mappers != nil {
		f.mappers.Synced()
	}
	return nil
}

// modelChanged gives a model, and the Devices that have it again.
func (f *follower) modelChanged(ctx context.Context, id types.NamespacedName) error {
	f.setModel(id)
	for device, model := range f.given {
		if model != id {
			continue
		}
		if err := f.setDevice(ctx, device); err != nil {
			return err
		}
	}
	return nil
}

func idOf(key wire.Key) types.NamespacedName {
	return types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
}

func keyOf(resource string, id types.NamespacedName) wire.Key {
	return wire.Key{Group: devices.Group, Resource: resource, Namespace: id.Namespace, Name: id.Name}
}

// setDevice gives a Device as it is in the store now, or takes it back.
func (f *follower) setDevice(ctx context.Context, id types.NamespacedName) error {
	device, model, modelID := f.objects.device(id)
	if device == nil {
		delete(f.given, id)
		if f.mappers != nil {
			f.mappers.RemoveDevice(id)
		}
		if err := f.consumer.RemoveDevice(ctx, id); err != nil {
			return fmt.Errorf("take back device %s: %w", id, err)
		}
		return nil
	}
	f.given[id] = modelID
	overrides := f.overrides.Of(id, device.UID)
	if f.mappers != nil {
		f.mappers.SetDevice(devicetwin.Drive(device, overrides))
	}
	if err := f.consumer.SetDevice(ctx, devicetwin.NewDrivenSpec(device, model, overrides)); err != nil {
		return fmt.Errorf("give device %s: %w", id, err)
	}
	return nil
}

// setModel gives the mappers a model as it is in the store now, or takes it back.
func (f *follower) setModel(id types.NamespacedName) {
	if f.mappers == nil {
		return
	}
	model := &devices.DeviceModel{}
	if f.objects.read(keyOf(devices.DeviceModelsResource, id), model) {
		f.mappers.SetModel(model)
	} else {
		f.mappers.RemoveModel(id)
	}
}
