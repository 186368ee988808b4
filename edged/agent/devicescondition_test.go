package agent_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/edged/agent"
)

func TestDevicesCondition_ShowsTheLinksBudget(t *testing.T) {
	for name, tt := range map[string]struct {
		devices config.Devices
		fault   error
		status  corev1.ConditionStatus
		reason  string
		message string
	}{
		"off": {config.Devices{}, nil, corev1.ConditionFalse, names.ReasonNotServed, "is off"},
		"no limit": {
			config.Devices{MQTT: config.MQTT{Mode: config.MQTTInternal}},
			nil, corev1.ConditionTrue, names.ReasonServed,
			"MQTT internal, mappers off; of the link take samples: no limit, messages: no limit",
		},
		"limits": {
			config.Devices{
				MQTT: config.MQTT{Mode: config.MQTTBoth}, DMI: config.DMI{Enabled: true},
				Telemetry: config.Telemetry{BytesPerSecond: 20000}, Messages: config.Messages{BytesPerSecond: 3000},
			},
			nil, corev1.ConditionTrue, names.ReasonServed,
			"MQTT both, mappers on; of the link take samples: at most 20000 bytes a second, messages: at most 3000 bytes a second",
		},
		"the broker must not listen": {
			config.Devices{MQTT: config.MQTT{Mode: config.MQTTInternal}},
			errors.New("set tls"), corev1.ConditionFalse, names.ReasonBrokerNotStarted,
			"the MQTT broker does not start: set tls",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := agent.DevicesCondition(tt.devices, tt.fault)
			if c.Type != names.ConditionDevices || c.Status != tt.status || c.Reason != tt.reason || !strings.Contains(c.Message, tt.message) {
				t.Errorf("%+v", c)
			}
		})
	}
}
