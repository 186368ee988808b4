package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/config"
)

// edgeCoreWith parses a configuration that is whole but for its settings of devices.
func edgeCoreWith(t *testing.T, devices string) (config.EdgeCore, error) {
	t.Helper()
	return config.ParseEdgeCore([]byte("node: gw-17\ndir: /var/lib/frond\nruntime: {hollow: true}\nhub: {urls: ['nats-leaf://hub:7422']}\ndevices: " + devices))
}

func TestDevices_Defaults(t *testing.T) {
	c, err := edgeCoreWith(t, "{}")
	if err != nil {
		t.Fatal(err)
	}
	if d := c.Devices; d.Enabled() || d.MQTT.Mode != "off" || d.MQTT.Listen != "127.0.0.1:1883" || d.Telemetry.MaxMiB != 64 || time.Duration(d.Telemetry.MaxAge) != 168*time.Hour {
		t.Errorf("%+v", d)
	}
	if c, err = edgeCoreWith(t, "{mqtt: {mode: internal}, dmi: {enabled: true}}"); err != nil || c.Devices.DMI.Dir != "/etc/kubeedge" {
		t.Errorf("%+v, %v", c.Devices, err)
	}
	if c, err = edgeCoreWith(t, "{mqtt: {mode: external, external: {url: 'tcp://127.0.0.1:1883'}}, dmi: {enabled: true}}"); err != nil || !c.Devices.Enabled() ||
		c.Devices.MQTT.External.KeepAlive != config.Duration(30*time.Second) || c.Devices.Messages.MaxPayloadKiB != 64 {
		t.Errorf("%+v, %v", c.Devices, err)
	}
	for _, good := range []string{
		"{mqtt: {mode: internal, usersFile: /u, listen: '0.0.0.0:8883', tls: {certFile: /c, keyFile: /k, clientCAFile: /a}}}",
		"{mqtt: {mode: internal, usersFile: /u, listen: '0.0.0.0:1883', allowPlaintext: true}}",
		"{mqtt: {mode: internal, allowLoopbackAnonymous: true, tls: {certFile: /c, keyFile: /k}}}",
	} {
		if _, err := edgeCoreWith(t, good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	if c, err = edgeCoreWith(t, "{mqtt: {mode: internal, allowLoopbackAnonymous: true}}"); err != nil || !c.Devices.Enabled() {
		t.Errorf("%+v, %v", c.Devices, err)
	}
}

// A broker that would send passwords in the clear does not listen; edgecore starts all the same.
func TestMQTT_CheckListen(t *testing.T) {
	for mqtt, want := range map[string]string{
		"listen: '0.0.0.0:1883'":                                   "set tls, or allowPlaintext",
		"listen: 'gw:8883'":                                        "set tls, or allowPlaintext",
		"listen: '0.0.0.0:1883', allowPlaintext: true":             "",
		"listen: '0.0.0.0:1883', tls: {certFile: /c, keyFile: /k}": "",
		"listen: '127.0.0.1:1883'":                                 "",
		"listen: '[::1]:1883'":                                     "",
		"listen: 'localhost:1883'":                                 "",
	} {
		c, err := edgeCoreWith(t, "{mqtt: {mode: internal, usersFile: /u, "+mqtt+"}}")
		if err != nil {
			t.Errorf("%s: %v", mqtt, err)
			continue
		}
		if err := c.Devices.MQTT.CheckListen(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", mqtt, err, want)
		}
	}
}

func TestDevices_Refuses(t *testing.T) {
	for devices, want := range map[string]string{
		"{mqtt: {mode: bridge}}":   `"bridge" is none of off, internal, external and both`,
		"{mqtt: {mode: both}}":     "devices.mqtt.external.url: needed",
		"{mqtt: {mode: external}}": "devices.mqtt.external.url: needed",
		"{mqtt: {mode: both, allowLoopbackAnonymous: true, external: {url: 'tcp://localhost:1883'}}}": "edgecore's own broker",
		"{mqtt: {mode: external, external: {url: 'tcp://a:1', password: x}}}":                         "unknown field",
		"{messages: {maxPayloadKiB: 257}}":                                                            "devices.messages.maxPayloadKiB",
		"{messages: {maxAge: 1s}}":                                                                    "devices.messages.maxAge",
		"{mqtt: {mode: internal}}":                                                                    "nobody could connect",
		"{mqtt: {mode: internal, allowLoopbackAnonymous: true, listen: '0.0.0.0:1883'}}":              "not a loopback address",
		"{mqtt: {mode: internal, usersFile: /u, tls: {certFile: /c}}}":                                "devices.mqtt.tls.keyFile: needed",
		"{mqtt: {mode: internal, usersFile: /u, tls: {keyFile: /k}}}":                                 "devices.mqtt.tls.certFile: needed",
		"{mqtt: {mode: internal, usersFile: /u, tls: {clientCAFile: /a}}}":                            "devices.mqtt.tls.certFile: needed",
		"{mqtt: {mode: internal, usersFile: /u, tls: {certFile: c, keyFile: /k}}}":                    "devices.mqtt.tls.certFile: \"c\" is not an absolute path",
		"{mqtt: {mode: external, external: {url: 'tcp://a:1'}, tls: {certFile: /c, keyFile: /k}}}":    "runs no broker in mode external",
		"{mqtt: {mode: internal, usersFile: users.yaml}}":                                             "not an absolute path",
		"{mqtt: {mode: internal, usersFile: /u, listen: here}}":                                       "devices.mqtt.listen",
		"{mqtt: {mode: internal, usersFile: /u, maxClients: -1}}":                                     "maxClients",
		"{mqtt: {mode: internal, usersFile: /u, maxStoreMiB: 1}}":                                     "maxStoreMiB",
		"{dmi: {enabled: true}}":                                                                      "needs a devices.mqtt.mode other than off",
		"{mqtt: {mode: internal}, dmi: {enabled: true, dir: x}}":                                      "not an absolute path",
		"{mqtt: {mode: internal}, dmi: {enabled: true, mappers: [{protocol: x}]}}":                    "namespace are required",
		"{telemetry: {maxMiB: -1}}":                                                                   "maxMiB",
		"{telemetry: {maxAge: 1s}}":                                                                   "less than a minute",
		"{telemetry: {bytesPerSecond: 1}}":                                                            "bytesPerSecond",
		"{mqtt: {modus: off}}":                                                                        "unknown field",
	} {
		if _, err := edgeCoreWith(t, devices); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", devices, err, want)
		}
	}
}
