package mapper

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/devicetwin/dmi/message"
)

// catalog has the Devices and DeviceModels of the gateway. Objects are not changed after they came.
type catalog struct {
	mu      sync.Mutex // guards all below
	devices map[types.NamespacedName]*devices.Device
	models  map[types.NamespacedName]*devices.DeviceModel
	// byProtocol and byModel have the devices of each protocol and model.
	byProtocol map[string]map[types.NamespacedName]bool
	byModel    map[types.NamespacedName]map[types.NamespacedName]bool
}

func newCatalog() *catalog {
	return &catalog{
		devices: map[types.NamespacedName]*devices.Device{}, models: map[types.NamespacedName]*devices.DeviceModel{},
		byProtocol: map[string]map[types.NamespacedName]bool{}, byModel: map[types.NamespacedName]map[types.NamespacedName]bool{},
	}
}

// setDevice takes a Device, or with nil its deletion. It returns the protocols whose mappers it concerns: the one before and the one now.
func (c *catalog) setDevice(id types.NamespacedName, device *devices.Device) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var protocols []string
	if old := c.devices[id]; old != nil {
		protocols = append(protocols, old.Spec.Protocol.ProtocolName)
		removeFrom(c.byProtocol, old.Spec.Protocol.ProtocolName, id)
		removeFrom(c.byModel, message.ModelOf(old), id)
		delete(c.devices, id)
	}
	if device != nil {
		protocol := device.Spec.Protocol.ProtocolName
		protocols = append(protocols, protocol)
		addTo(c.byProtocol, protocol, id)
		addTo(c.byModel, message.ModelOf(device), id)
		c.devices[id] = device
	}
	return slices.Compact(protocols)
}

// setModel takes a DeviceModel, or with nil its deletion. It returns the devices that have it, by protocol.
func (c *catalog) setModel(id types.NamespacedName, model *devices.DeviceModel) map[string][]types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	if model == nil {
		delete(c.models, id)
	} else {
		c.models[id] = model
	}
	concerned := map[string][]types.NamespacedName{}
	for device := range c.byModel[id] {
		protocol := c.devices[device].Spec.Protocol.ProtocolName
		concerned[protocol] = append(concerned[protocol], device)
	}
	return concerned
}

// protocolOf returns the protocol of a device and whether there is the device.
func (c *catalog) protocolOf(id types.NamespacedName) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	device, ok := c.devices[id]
	if !ok {
		return "", false
	}
	return device.Spec.Protocol.ProtocolName, true
}

// devicesOf returns the devices of a protocol by name.
func (c *catalog) devicesOf(protocol string) []types.NamespacedName {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids := make([]types.NamespacedName, 0, len(c.byProtocol[protocol]))
	for id := range c.byProtocol[protocol] {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, compareNames)
	return ids
}

// get returns a device of a protocol and its model; nil: there is none.
func (c *catalog) get(protocol string, id types.NamespacedName) (*devices.Device, *devices.DeviceModel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	device := c.devices[id]
	if device == nil || device.Spec.Protocol.ProtocolName != protocol {
		return nil, nil
	}
	return device, c.models[message.ModelOf(device)]
}

// wanted is a device as a mapper should have it.
type wanted struct {
	device *dmipb.Device
	model  *dmipb.DeviceModel
	// sum is of both: a mapper reads the model only when it gets the device.
	sum   [sha256.Size]byte
	notes []message.Note
}

// newWanted converts a device. before is the message that the mapper has.
func newWanted(device *devices.Device, model *devices.DeviceModel, before *dmipb.Device) (*wanted, error) {
	w := &wanted{model: message.Model(model)}
	w.device, w.notes = message.Device(device, model, message.DesiredValues(before))
	hash := sha256.New()
	for _, m := range []proto.Message{w.device, w.model} {
		raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("encode the device for its mapper: %w", err)
		}
		fmt.Fprintf(hash, "%d ", len(raw))
		hash.Write(raw)
	}
	hash.Sum(w.sum[:0])
	return w, nil
}

func addTo[K, V comparable](m map[K]map[V]bool, key K, value V) {
	if m[key] == nil {
		m[key] = map[V]bool{}
	}
	m[key][value] = true
}

func removeFrom[K, V comparable](m map[K]map[V]bool, key K, value V) {
	if delete(m[key], value); len(m[key]) == 0 {
		delete(m, key)
	}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
