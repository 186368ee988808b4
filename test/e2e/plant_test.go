package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/internal/devcluster"
	pump "github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/mappertest"
	"github.com/frond-edge/frond/test/kit/mosquittotest"
)

// The plant: on each of two gateways pumps that speak MQTT and motors behind a mapper, and on edge-2 valves behind Modbus and pumps whose broker is
// mosquitto.
const (
	pumpsPerGateway  = 20
	motorsPerGateway = 4
	valves           = 2
	mosquittoPumps   = 6
)

// mosquittoKills is how often a process on the way of a sample through mosquitto is killed: edgecore of edge-2 and mosquitto itself. After each death
// the last sample of a pump may come again, directly after itself: edgecore had stored it and mosquitto had not the acknowledgement, or had it in
// memory alone (record 0058). Of the own broker none may.
const mosquittoKills = 2

const plantModels = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: plant-pump}
spec: {protocol: mqtt, properties: [{name: sample, type: INT, accessMode: ReadOnly}, {name: setpoint, type: STRING, accessMode: ReadWrite}]}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: plant-motor}
spec: {protocol: virtual, properties: [{name: sample, type: INT, accessMode: ReadOnly}, {name: setpoint, type: INT, accessMode: ReadWrite}]}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: plant-valve}
spec: {protocol: modbus, properties: [{name: sample, type: INT, accessMode: ReadOnly}, {name: setpoint, type: INT, accessMode: ReadWrite}]}
`

// plantDevice is a device of the plant. Its model is plant-KIND.
type plantDevice struct {
	name, kind, gateway, protocol string
	// mosquitto is the broker of a pump that does not use the gateway's own.
	mosquitto bool
}

// plantDevices lists the plant, with pumps at mosquitto or without. address is that of the Modbus device.
func plantDevices(address string, mosquitto bool) (list []plantDevice) {
	for _, gateway := range []string{"edge-1", "edge-2"} {
		for i := range pumpsPerGateway {
			list = append(list, plantDevice{name: fmt.Sprintf("pump-%s-%d", gateway, i), kind: "pump", gateway: gateway, protocol: "mqtt"})
		}
		for i := range motorsPerGateway {
			list = append(list, plantDevice{name: fmt.Sprintf("motor-%s-%d", gateway, i), kind: "motor", gateway: gateway, protocol: "virtual"})
		}
	}
	for i := range valves {
		protocol := fmt.Sprintf(`modbus, configData: {address: %q, slaveID: %d}`, address, i+1)
		list = append(list, plantDevice{name: fmt.Sprintf("valve-%d", i), kind: "valve", gateway: "edge-2", protocol: protocol})
	}
	if mosquitto {
		for i := range mosquittoPumps {
			list = append(list, plantDevice{name: fmt.Sprintf("pump-mosquitto-%d", i), kind: "pump", gateway: "edge-2", protocol: "mqtt", mosquitto: true})
		}
	}
	return list
}

// manifest is the Device with a desired value.
func (d plantDevice) manifest(setpoint string) string {
	visitors := ""
	switch d.kind {
	case "motor":
		visitors = `, reportToCloud: true, collectCycle: 400, visitors: {protocolName: virtual, configData: {count: COUNT}}`
	case "valve":
		visitors = `, reportToCloud: true, collectCycle: 400, visitors: {protocolName: modbus, configData: {register: HoldingRegister, offset: OFFSET}}`
	}
	return "---" + fmt.Sprintf(`
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: %s, labels: {plant: "1"}}
spec:
  deviceModelRef: {name: plant-%s}
  nodeName: %s
  protocol: {protocolName: %s}
  properties:
  - {name: sample%s}
  - {name: setpoint, desired: {value: %q}%s}
`, d.name, d.kind, d.gateway, d.protocol, strings.NewReplacer("COUNT", "true", "OFFSET", "0").Replace(visitors),
		setpoint, strings.NewReplacer("COUNT", "false", "OFFSET", "5").Replace(visitors))
}

// plant is a running plant.
type plant struct {
	t       *testing.T
	devices []plantDevice
	// status are the pumps' files; stop ends the pumps.
	status map[string]string
	stop   func()
	// mapper is the binary; mappers are by gateway and protocol, and all that ran are in processes.
	mapper    string
	mappers   map[string]*mappertest.Process
	processes []*mappertest.Process
	// mosquitto is nil if none is installed, or edge-2 has a network of its own.
	mosquitto *mosquittotest.Broker
}

// manifest is the whole plant with one desired value.
func (p *plant) manifest(setpoint string) string {
	var b strings.Builder
	b.WriteString(plantModels)
	for _, d := range p.devices {
		b.WriteString(d.manifest(setpoint))
	}
	return b.String()
}

func newPlant(t *testing.T) *plant {
	t.Helper()
	root := filepath.Join("..", "..")
	address, _ := mappertest.StartSimulator(t, root)
	p := &plant{
		t: t, mosquitto: startMosquitto(t), status: map[string]string{}, mapper: mappertest.Build(t, root), mappers: map[string]*mappertest.Process{},
	}
	p.devices = plantDevices(address, p.mosquitto != nil)
	applyManifest(t, p.manifest("1"))
	p.startMapper("edge-1", "virtual")
	p.startMapper("edge-2", "virtual")
	p.startMapper("edge-2", "modbus")
	p.startPumps()
	return p
}

// startMosquitto starts a mosquitto beside edge-2's own broker, until the end of the test.
func startMosquitto(t *testing.T) *mosquittotest.Broker {
	t.Helper()
	if shared.Spec().Runtime != devcluster.Hollow || !mosquittotest.Installed(t) {
		return nil
	}
	b := mosquittotest.Start(t)
	restore := configureMQTT(t, "edge-2", map[string]any{"mode": config.MQTTBoth, "external": map[string]any{"url": "tcp://" + b.Addr}})
	t.Cleanup(restore)
	return b
}

// configureMQTT changes devices.mqtt of a gateway's configuration and starts its edgecore again. restore undoes that.
func configureMQTT(t *testing.T, gateway string, change map[string]any) (restore func()) {
	t.Helper()
	file := filepath.Join(shared.Dir(), gateway, "edgecore.yaml")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cfg struct {
		fields  map[string]any
		devices map[string]any
		mqtt    map[string]any
	}
	if err := yaml.Unmarshal(before, &cfg.fields); err != nil {
		t.Fatal(err)
	}
	cfg.devices, _ = cfg.fields["devices"].(map[string]any)
	cfg.mqtt, _ = cfg.devices["mqtt"].(map[string]any)
	if cfg.mqtt == nil {
		t.Fatalf("%s has no devices.mqtt", file)
	}
	maps.Copy(cfg.mqtt, change)
	after, err := yaml.Marshal(cfg.fields)
	if err != nil {
		t.Fatal(err)
	}
	startWith := func(text []byte) {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Error(err)
		}
		if err := errors.Join(shared.Kill(ctx, gateway), shared.Start(ctx, gateway)); err != nil {
			t.Error(err)
		}
	}
	startWith(after)
	return func() { startWith(before) }
}

// startMapper starts a mapper, or the next one after it was killed.
func (p *plant) startMapper(gateway, protocol string) {
	p.t.Helper()
	m := mappertest.Run(p.t, p.mapper, mappertest.WriteProtocolConfig(p.t, shared.MapperDir(gateway), protocol))
	p.mappers[gateway+"/"+protocol] = m
	p.processes = append(p.processes, m)
}

// startPumps starts all pumps. Each has a connection of its own and goes on whatever happens, until stop.
func (p *plant) startPumps() {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	dir, log := p.t.TempDir(), zaptest.NewLogger(p.t, zaptest.Level(zap.WarnLevel))
	var running sync.WaitGroup
	for _, d := range p.devices {
		if d.kind != "pump" {
			continue
		}
		p.status[d.name] = filepath.Join(dir, d.name)
		broker := shared.MQTTAddress(d.gateway)
		if d.mosquitto {
			broker = p.mosquitto.Addr
		}
		cfg := pump.Config{Namespace: "default", Name: d.name, Broker: broker, Interval: 400 * time.Millisecond, StatusFile: p.status[d.name]}
		running.Go(func() {
			if err := pump.New(cfg, log).Start(ctx); err != nil {
				p.t.Errorf("%s: %v", d.name, err)
			}
		})
	}
	p.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	p.t.Cleanup(p.stop)
}

// readPump returns what a pump says of itself.
func (p *plant) readPump(name string) pump.Status {
	p.t.Helper()
	s, err := pump.ReadStatus(p.status[name])
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// answered returns the samples of the motors and valves that edgecore has answered, by device, from what the mappers have printed.
func (p *plant) answered() map[string][]int64 {
	p.t.Helper()
	all := map[string][]int64{}
	for _, m := range p.processes {
		for line := range strings.Lines(m.Output()) {
			words := strings.Fields(line)
			if len(words) != 4 || words[0] != "answered" || words[2] != pump.Sample || !strings.HasSuffix(line, "\n") {
				continue
			}
			value, err := strconv.ParseInt(words[3], 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			name := strings.TrimPrefix(words[1], "default/")
			all[name] = append(all[name], value)
		}
	}
	return all
}

// awaitSamples waits until each device has some more samples answered.
func (p *plant) awaitSamples(what string, n int) {
	p.t.Helper()
	count := func() map[string]int {
		counts, mapped := map[string]int{}, p.answered()
		for _, d := range p.devices {
			counts[d.name] = len(mapped[d.name])
			if d.kind == "pump" {
				counts[d.name] = int(p.readPump(d.name).Answered)
			}
		}
		return counts
	}
	before := count()
	eventually(p.t, what, func(context.Context) string {
		for name, have := range count() {
			if have < before[name]+n {
				return fmt.Sprintf("%s has %d samples, want %d", name, have, before[name]+n)
			}
		}
		return ""
	})
}

// awaitStatuses waits until the DeviceStatus of each device is as it should be.
func (p *plant) awaitStatuses(what string, wrong func(plantDevice, devices.DeviceStatus) string) {
	p.t.Helper()
	eventually(p.t, what, func(ctx context.Context) string {
		text, err := shared.Kubectl(ctx, "", "get", "devicestatuses", "-o", "json")
		if err != nil {
			return err.Error()
		}
		var list struct{ Items []devices.DeviceStatus }
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return err.Error()
		}
		statuses := map[string]devices.DeviceStatus{}
		for _, s := range list.Items {
			statuses[s.Name] = s
		}
		var problems []string
		for _, d := range p.devices {
			if problem := wrong(d, statuses[d.name]); problem != "" {
				problems = append(problems, d.name+": "+problem)
			}
		}
		return strings.Join(problems[:min(len(problems), 5)], "; ")
	})
}

// reportedValue returns the reported value of a property in a DeviceStatus.
func reportedValue(s devices.DeviceStatus, property string) string {
	for _, twin := range s.Status.Twins {
		if twin.PropertyName == property && twin.Reported != nil {
			return twin.Reported.Value
		}
	}
	return ""
}

// plantSamples returns the samples of all devices that are in the hub's stream after a position, in their order.
func plantSamples(ctx context.Context, js jetstream.JetStream, after uint64) (map[string][]int64, error) {
	consumer, err := js.OrderedConsumer(ctx, subject.TelemetryStream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{"telemetry.*.default.*." + pump.Sample}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: after + 1,
	})
	if err != nil {
		return nil, err
	}
	batch, err := consumer.FetchNoWait(100_000)
	if err != nil {
		return nil, err
	}
	samples := map[string][]int64{}
	for m := range batch.Messages() {
		value, err := strconv.ParseInt(string(m.Data()), 10, 64)
		if err != nil {
			return nil, err
		}
		name := strings.Split(m.Subject(), ".")[3]
		samples[name] = append(samples[name], value)
	}
	return samples, batch.Error()
}

// judgePlant compares the samples in the hub with what the devices know: of a pump each number that was answered is there, in order, and once unless the
// pump has sent it again; of the others each value that was answered is there once, and all are in order.
func judgePlant(pumps map[string]pump.Status, answered, hub map[string][]int64) (problems []string) {
	for _, name := range slices.Sorted(maps.Keys(pumps)) {
		if err := pumps[name].Check(hub[name]); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", name, err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(answered)) {
		values := hub[name]
		for i := range values {
			if i > 0 && values[i] <= values[i-1] {
				problems = append(problems, fmt.Sprintf("%s: sample %d has the value %d after %d", name, i+1, values[i], values[i-1]))
			}
		}
		for _, value := range answered[name] {
			if !slices.Contains(values, value) {
				problems = append(problems, fmt.Sprintf("%s: %d was answered and is not there", name, value))
			}
		}
	}
	return problems
}

// allowAgain allows the pumps at mosquitto one sample a second time for each kill.
func allowAgain(pumps map[string]pump.Status, all []plantDevice) {
	for _, d := range all {
		if d.mosquitto {
			s := pumps[d.name]
			s.Repeated += mosquittoKills
			pumps[d.name] = s
		}
	}
}

// disturb kills each kind of process in turn, while edge-1 is without its link, and power-cycles edge-1.
func (p *plant) disturb() {
	t := p.t
	t.Helper()
	step := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	step("kill", shared.Kill(t.Context(), "edge-2"))
	step("start", shared.Start(t.Context(), "edge-2"))
	p.mappers["edge-2/virtual"].Kill()
	p.startMapper("edge-2", "virtual")
	if p.mosquitto != nil {
		p.mosquitto.Kill()
		p.mosquitto.Start()
	}
	for _, part := range []string{"cloudcore-1", "hub-2"} {
		step("kill", shared.Kill(t.Context(), part))
		step("start", shared.Start(t.Context(), part))
	}
	_, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Offline: true, Timeout: waitTimeout})
	step("reboot", err)
	p.awaitSamples("each device reports after all kills", 1)
}

// TestDevices_Plant: fifty devices of two gateways report over a cut link, the deaths of an edgecore, a mapper, mosquitto, a cloudcore and a hub server,
// and a power cut of a gateway without a link. Each sample that was answered is in the hub, each desired value is applied, and the states are true at the end.
func TestDevices_Plant(t *testing.T) {
	_, js := connectAdmin(t)
	stream, err := js.Stream(t.Context(), subject.TelemetryStream)
	if err != nil {
		t.Fatal(err)
	}
	before := stream.CachedInfo().State.LastSeq
	p := newPlant(t)
	p.awaitSamples("each device reports", 2)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, part := range []string{"edge-1", "edge-2", "cloudcore-1", "hub-2"} {
			if shared.PID(part) == 0 {
				if err := shared.Start(ctx, part); err != nil {
					t.Error(err)
				}
			}
		}
		if err := shared.Heal(ctx, "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	if _, err := shared.Kubectl(t.Context(), p.manifest("2"), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	p.disturb()
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	p.awaitStatuses("each desired value is applied", func(d plantDevice, s devices.DeviceStatus) string {
		if value := reportedValue(s, "setpoint"); value != "2" || d.kind == "pump" && s.Status.State != "online" {
			return fmt.Sprintf("the setpoint is %q, the state %q", value, s.Status.State)
		}
		return ""
	})

	p.stop()
	for _, m := range p.processes {
		m.Kill()
	}
	pumps, answered := map[string]pump.Status{}, p.answered()
	for name := range p.status {
		pumps[name] = p.readPump(name)
	}
	allowAgain(pumps, p.devices)
	count := 0
	eventually(t, "the samples are in the hub", func(ctx context.Context) string {
		hub, err := plantSamples(ctx, js, before)
		if err != nil {
			return err.Error()
		}
		count = 0
		for _, values := range hub {
			count += len(values)
		}
		return strings.Join(judgePlant(pumps, answered, hub), "\n")
	})
	t.Logf("%d samples of %d devices", count, len(p.devices))
	p.awaitStatuses("the states are true", func(d plantDevice, s devices.DeviceStatus) string {
		if d.kind != "pump" {
			return ""
		}
		value, err := strconv.ParseInt(reportedValue(s, pump.Sample), 10, 64)
		if err != nil || value < pumps[d.name].Answered || s.Status.State != "offline" {
			return fmt.Sprintf("the last sample is %d of %d, the state %q", value, pumps[d.name].Answered, s.Status.State)
		}
		return ""
	})
}
