package devices

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"
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

// follower gives the Devices of the gateway's store to a consumer: those that name this node, each with its model.
type follower struct {
	node     string
	store    *store.Store
	consumer Consumer
	// mappers may be nil.
	mappers Mappers
	log     *zap.Logger
	// given are the Devices that the consumer has, with their models.
	given map[types.NamespacedName]types.NamespacedName
}

// follow runs until ctx ends, the consumer fails or it was too slow for the store's events.
func (f *follower) follow(ctx context.Context) error {
	modelList, revision := f.store.List(devices.Group, devices.DeviceModelsResource, "") // older than the devices, so that no change is missed
	list, _ := f.store.List(devices.Group, devices.DevicesResource, "")
	changes, err := f.store.Watch(devices.Group, devices.DevicesResource, "", revision)
	if err != nil {
		return fmt.Errorf("watch devices: %w", err)
	}
	defer changes.Stop()
	models, err := f.store.Watch(devices.Group, devices.DeviceModelsResource, "", revision)
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
	var device devices.Device
	if found := f.read(keyOf(devices.DevicesResource, id), &device); !found || device.Spec.NodeName != f.node {
		delete(f.given, id)
		if f.mappers != nil {
			f.mappers.RemoveDevice(id)
		}
		if err := f.consumer.RemoveDevice(ctx, id); err != nil {
			return fmt.Errorf("take back device %s: %w", id, err)
		}
		return nil
	}
	var model *devices.DeviceModel
	modelID := types.NamespacedName{Namespace: id.Namespace}
	if ref := device.Spec.DeviceModelRef; ref != nil {
		modelID.Name = ref.Name
		var read devices.DeviceModel
		if f.read(keyOf(devices.DeviceModelsResource, modelID), &read) {
			model = &read
		}
	}
	f.given[id] = modelID
	if f.mappers != nil {
		f.mappers.SetDevice(&device)
	}
	if err := f.consumer.SetDevice(ctx, devicetwin.NewSpec(&device, model)); err != nil {
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
	if f.read(keyOf(devices.DeviceModelsResource, id), model) {
		f.mappers.SetModel(model)
	} else {
		f.mappers.RemoveModel(id)
	}
}

// read reports whether the store has an object that can be decoded.
func (f *follower) read(key wire.Key, into any) bool {
	entry, err := f.store.Get(key)
	if err != nil {
		return false
	}
	if err := json.Unmarshal(entry.Object, into); err != nil {
		f.log.Error("object unreadable, taken as absent", zap.String("object", key.Human()), zap.Error(err))
		return false
	}
	return true
}
