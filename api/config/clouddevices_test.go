package config_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/config"
)

func TestCloudDevices(t *testing.T) {
	const hub = `
hub: {urls: ["nats://h:4222"], nkeyFile: /n, caFile: /ca, certFile: /c, keyFile: /k}
`
	c, err := config.ParseCloudCore([]byte(hub), "a")
	if err != nil || c.Devices != (config.CloudDevices{StatusInDevicePerSecond: 50}) {
		t.Errorf("%+v, %v", c.Devices, err)
	}
	c, err = config.ParseCloudCore([]byte(hub+"devices: {statusInDevice: true, statusInDevicePerSecond: 5}\n"), "a")
	if err != nil || c.Devices != (config.CloudDevices{StatusInDevice: true, StatusInDevicePerSecond: 5}) {
		t.Errorf("%+v, %v", c.Devices, err)
	}
	if _, err = config.ParseCloudCore([]byte(hub+"devices: {statusInDevicePerSecond: -1}\n"), "a"); err == nil || !strings.Contains(err.Error(), "devices.statusInDevicePerSecond: -1") {
		t.Errorf("%v", err)
	}
}
