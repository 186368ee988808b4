package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/mappertest"
)

// A sensor as a user of KubeEdge has it: nothing names Frond.
const boilerManifest = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: boiler-model}
spec:
  protocol: mqtt
  properties:
  - {name: setpoint, type: INT, accessMode: ReadWrite}
  - {name: temperature, type: INT, accessMode: ReadOnly}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: boiler}
spec:
  deviceModelRef: {name: boiler-model}
  nodeName: edge-1
  protocol: {protocolName: mqtt}
  properties:
  - {name: setpoint, desired: {value: "60"}}
  - {name: temperature}
`

// gatewayOptions are those of an MQTT app on a gateway.
func gatewayOptions(ctx context.Context, edge, clientID string) *paho.ClientOptions {
	return paho.NewClientOptions().AddBroker("tcp://" + shared.MQTTAddress(edge)).SetClientID(clientID).SetAutoReconnect(false).SetConnectTimeout(5 * time.Second).
		SetCustomOpenConnectionFn(func(at *url.URL, _ paho.ClientOptions) (net.Conn, error) { return shared.DialFrom(ctx, edge, at.Host) })
}

// dialGateway connects an MQTT app on a gateway, which subscribes to what its broker tells about the boiler.
func dialGateway(t *testing.T, edge string) (app paho.Client, received chan paho.Message) {
	t.Helper()
	received = make(chan paho.Message, 1000)
	o := gatewayOptions(t.Context(), edge, "app-"+strconv.FormatInt(time.Now().UnixNano(), 36)).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { received <- m })
	eventually(t, "an app connects to the broker of "+edge, func(context.Context) string {
		app = paho.NewClient(o)
		if token := app.Connect(); !token.WaitTimeout(10*time.Second) || token.Error() != nil {
			return fmt.Sprint(token.Error())
		}
		return ""
	})
	t.Cleanup(func() { app.Disconnect(100) })
	token := app.Subscribe("$hw/events/device/default/boiler/#", 1, nil)
	if !token.WaitTimeout(10*time.Second) || token.Error() != nil {
		t.Fatal(token.Error())
	}
	return app, received
}

// sendTwin publishes a value of the boiler, as a device with a clock.
func sendTwin(t *testing.T, app paho.Client, property string, value int, at int64) {
	t.Helper()
	text := fmt.Sprintf(`{"event_id":"e","timestamp":%d,"twin":{%q:{"actual":{"value":"%d"},"metadata":{"type":"int"}}}}`, at, property, value)
	if token := app.Publish("$hw/events/device/default/boiler/twin/update", 1, false, text); !token.WaitTimeout(10*time.Second) || token.Error() != nil {
		t.Fatal(token.Error())
	}
}

// awaitReported waits until the DeviceStatus of the boiler shows a value.
func awaitReported(t *testing.T, property, want string) (status devices.DeviceStatus) {
	t.Helper()
	eventually(t, fmt.Sprintf("DeviceStatus shows %s of %s", want, property), func(context.Context) string {
		text, err := shared.Kubectl(t.Context(), "", "get", "devicestatus", "boiler", "-o", "json")
		if err != nil {
			return err.Error()
		}
		status = devices.DeviceStatus{}
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return err.Error()
		}
		for _, twin := range status.Status.Twins {
			if twin.PropertyName == property && twin.Reported != nil && twin.Reported.Value == want {
				return ""
			}
		}
		return text
	})
	return status
}

// awaitDelta waits until the app is told a desired value.
func awaitDelta(t *testing.T, received chan paho.Message, want string) {
	t.Helper()
	eventually(t, "the app is told "+want, func(context.Context) string {
		for {
			select {
			case m := <-received:
				if strings.HasSuffix(m.Topic(), "/delta") && strings.Contains(string(m.Payload()), want) {
					return ""
				}
			default:
				return "nothing"
			}
		}
	})
}

// readSamples returns the values of the boiler's temperature in the hub, in their order.
func readSamples(ctx context.Context, js jetstream.JetStream) (values []int, err error) {
	return readValues(ctx, js, subject.TelemetryStream, subject.SampleSubject("edge-1", "default", "boiler", "temperature"))
}

// readValues returns the payloads of a subject of a stream.
func readValues(ctx context.Context, js jetstream.JetStream, stream, filter string) (values []int, err error) {
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return nil, err
	}
	batch, err := consumer.FetchNoWait(10_000)
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		value, err := strconv.Atoi(string(m.Data()))
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	return values, batch.Error()
}

// TestDevices_MQTT: what an app reports is in the DeviceStatus of its Device and, each sample once and in order, in the hub's stream; what Kubernetes
// desires reaches the app. Both goes on over a cut and the death of edgecore, and the state of a device is unknown while its gateway is away.
func TestDevices_MQTT(t *testing.T) {
	_, js := connectAdmin(t)
	applyManifest(t, boilerManifest)
	app, received := dialGateway(t, "edge-1")
	awaitDeviceKnown(t, app, received)
	eventually(t, "the Node says how devices are served", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "get", "node", "edge-1", "-o", `jsonpath={.status.conditions[?(@.type=="EdgeDevices")].message}`)
		if err != nil || !strings.Contains(out, "MQTT internal, mappers on; of the link take samples: no limit") {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	before, err := readSamples(t.Context(), js) // of other tests
	if err != nil {
		t.Fatal(err)
	}

	next := 0
	send := func(n int) {
		t.Helper()
		for range n {
			sendTwin(t, app, "temperature", next, int64(1_000_000+next))
			next++
		}
	}
	if token := app.Publish("$hw/events/device/default/boiler/state/update", 1, false, `{"event_id":"e","state":"online"}`); !token.WaitTimeout(10*time.Second) || token.Error() != nil {
		t.Fatal(token.Error())
	}
	send(20)
	status := awaitReported(t, "temperature", "19")
	if status.Status.State != "online" || len(status.OwnerReferences) != 1 || status.OwnerReferences[0].Kind != "Device" {
		t.Errorf("DeviceStatus is %+v", status)
	}
	if table := runKubectl(t, "get", "devicestatus", "boiler"); !strings.Contains(table, "online") {
		t.Errorf("kubectl get prints %s", table)
	}
	runKubectl(t, "patch", "device", "boiler", "--type=merge", "-p", `{"spec":{"properties":[{"name":"setpoint","desired":{"value":"70"}},{"name":"temperature"}]}}`)
	awaitDelta(t, received, `"70"`)
	sendTwin(t, app, "setpoint", 70, 2_000_000)
	awaitReported(t, "setpoint", "70")

	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	send(300)
	eventually(t, "the state is unknown", func(context.Context) string {
		text, err := shared.Kubectl(t.Context(), "", "get", "devicestatus", "boiler", "-o", "jsonpath={.status.state}/{.status.extensions.frond.state.before}")
		if err == nil && text == "unknown/online" {
			return ""
		}
		return fmt.Sprint(text, err)
	})
	if err := shared.Kill(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Start(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	app, _ = dialGateway(t, "edge-1")
	send(30)
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	send(1)
	status = awaitReported(t, "temperature", strconv.Itoa(next-1))
	if status.Status.State != "online" {
		t.Errorf("the state after the cut is %q", status.Status.State)
	}
	eventually(t, "all samples are in the hub", func(ctx context.Context) string {
		values, err := readSamples(ctx, js)
		if err != nil {
			return err.Error()
		}
		values = values[min(len(before), len(values)):]
		for i, value := range values {
			if value != i {
				t.Fatalf("sample %d has the value %d", i, value)
			}
		}
		if len(values) < next {
			return fmt.Sprintf("%d of %d", len(values), next)
		}
		return ""
	})
	runKubectl(t, "delete", "device", "boiler")
	eventually(t, "its status is deleted with it", func(context.Context) string {
		if _, err := shared.Kubectl(t.Context(), "", "get", "devicestatus", "boiler"); err != nil {
			return ""
		}
		return "it is there"
	})
}

// awaitDeviceKnown waits until the gateway has the Device: before, its messages are refused.
func awaitDeviceKnown(t *testing.T, app paho.Client, received chan paho.Message) {
	t.Helper()
	eventually(t, "the gateway knows the device", func(context.Context) string {
		app.Publish("$hw/events/device/default/boiler/twin/get", 1, false, `{"event_id":"known"}`)
		select {
		case m := <-received:
			if strings.HasSuffix(m.Topic(), "/get/result") && strings.Contains(string(m.Payload()), `"twin"`) {
				return ""
			}
			return string(m.Payload())
		case <-time.After(100 * time.Millisecond):
			return "no answer"
		}
	})
}

// A device that a mapper drives, as a user of KubeEdge has it.
const motorManifest = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: motor-model}
spec:
  protocol: virtual
  properties: [{name: speed, type: INT, accessMode: ReadWrite}]
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: motor}
spec:
  deviceModelRef: {name: motor-model}
  nodeName: edge-2
  protocol: {protocolName: virtual, configData: {line: 3}}
  properties:
  - name: speed
    desired: {value: "100"}
    reportToCloud: true
    collectCycle: 100
    reportCycle: 100
    visitors: {protocolName: virtual, configData: {dataType: int}}
`

// TestDevices_Mapper: an unmodified mapper of KubeEdge's framework drives a Device of the cluster, over the death of edgecore.
func TestDevices_Mapper(t *testing.T) {
	mappertest.Start(t, mappertest.Build(t, filepath.Join("..", "..")), mappertest.WriteConfig(t, shared.MapperDir("edge-2")))
	applyManifest(t, motorManifest)
	reports := func(want string) {
		t.Helper()
		eventually(t, "DeviceStatus of the motor shows "+want, func(context.Context) string {
			text, err := shared.Kubectl(t.Context(), "", "get", "devicestatus", "motor", "-o",
				`jsonpath={.status.twins[0].reported.value} {range .status.extensions.frond.conditions[*]}{.type}={.status} {end}`)
			if err == nil && strings.HasPrefix(text, want+" ") && strings.Contains(text, "Delivered=True") && strings.Contains(text, "Applied=True") {
				return ""
			}
			return fmt.Sprint(text, err)
		})
	}
	reports("100")
	if err := shared.Kill(t.Context(), "edge-2"); err != nil {
		t.Fatal(err)
	}
	runKubectl(t, "patch", "device", "motor", "--type=json", "-p", `[{"op":"replace","path":"/spec/properties/0/desired/value","value":"200"}]`)
	if err := shared.Start(t.Context(), "edge-2"); err != nil {
		t.Fatal(err)
	}
	reports("200")
}
