package deviceview

// Path is the path of devices on edgecore's unix socket:
//
//	GET    /frond/devices                            all Devices of the gateway, a list of Device
//	GET    /frond/devices/NAMESPACE/NAME             one Device
//	PUT    /frond/devices/NAMESPACE/NAME/override    an OverrideRequest; the answer is the Device
//	DELETE /frond/devices/NAMESPACE/NAME/override    ends overrides: ?property=NAME, several or none for all; the answer is the Device
const Path = "/frond/devices"

// OverrideSuffix is the last part of the paths of overrides.
const OverrideSuffix = "override"

// OverrideRequest sets values of a device on its gateway.
type OverrideRequest struct {
	// Values are by property.
	Values map[string]string `json:"values"`
	// Seconds is how long they last, at most MaxOverrideSeconds.
	Seconds int64 `json:"seconds"`
	// By is who sets them.
	By string `json:"by"`
}

// MaxOverrideSeconds is 7 days: who needs a value for longer changes the Device.
const MaxOverrideSeconds = 7 * 24 * 3600
