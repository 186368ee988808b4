package config

import "fmt"

// CloudDevices are cloudcore's settings for devices.
type CloudDevices struct {
	// StatusInDevice copies each DeviceStatus into the status of its Device, for tools that read the twins there as in KubeEdge 1.15 to 1.22.
	StatusInDevice bool `json:"statusInDevice,omitempty"`
	// StatusInDevicePerSecond bounds how many Devices this replica writes for that in a second; the default is 50.
	StatusInDevicePerSecond int `json:"statusInDevicePerSecond,omitempty"`
}

// defaultStatusInDevicePerSecond leaves half of what a cloudcore writes about devices at most.
const defaultStatusInDevicePerSecond = 50

func (d *CloudDevices) setDefaults() {
	if d.StatusInDevicePerSecond == 0 {
		d.StatusInDevicePerSecond = defaultStatusInDevicePerSecond
	}
}

func (d CloudDevices) validate() error {
	if d.StatusInDevicePerSecond < 0 {
		return fmt.Errorf("devices.statusInDevicePerSecond: %d is not positive", d.StatusInDevicePerSecond)
	}
	return nil
}
