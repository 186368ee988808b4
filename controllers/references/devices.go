package references

import (
	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
)

// OfDevice returns the model of a device in a namespace; model is the name in its reference, "" for none.
func OfDevice(namespace, model string) []wire.Key {
	if model == "" {
		return nil
	}
	return []wire.Key{{Group: devices.Group, Resource: devices.DeviceModelsResource, Namespace: namespace, Name: model}}
}
