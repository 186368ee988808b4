package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	dmiapi "github.com/kubeedge/api/apis/dmi/v1beta1"
	"github.com/kubeedge/mapper-framework/pkg/common"
	"github.com/kubeedge/mapper-framework/pkg/grpcclient"
	"github.com/kubeedge/mapper-framework/pkg/util/parse"
)

// panel has the devices. It implements the framework's global.DevPanel.
type panel struct {
	mu      sync.Mutex // guards both
	devices map[string]*device
	// models are by name when they came with the registration, and by namespace and name later, as in the template.
	models map[string]common.DeviceModel
}

// device is a device of a protocol that openDriver knows.
type device struct {
	instance common.DeviceInstance
	// driver is nil until the device has started: to stop it before panics, as in most drivers.
	driver driver
	stop   func()
}

func newPanel() *panel {
	return &panel{devices: map[string]*device{}, models: map[string]common.DeviceModel{}}
}

// DevInit takes the answer of the registration.
func (p *panel) DevInit(devices []*dmiapi.Device, models []*dmiapi.DeviceModel) error {
	if len(devices) == 0 || len(models) == 0 {
		return nil
	}
	for _, m := range models {
		p.models[m.Name] = parse.GetDeviceModelFromGrpc(m)
	}
	for _, d := range devices {
		model := p.models[d.Spec.DeviceModelReference]
		protocol, err := parse.BuildProtocolFromGrpc(d)
		if err != nil {
			return err
		}
		instance, err := parse.GetDeviceFromGrpc(d, &model)
		if err != nil {
			return err
		}
		instance.PProtocol = protocol
		p.devices[instance.ID] = &device{instance: *instance}
	}
	return nil
}

// DevStart starts the devices of the registration.
func (p *panel) DevStart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.devices {
		d.start()
	}
}

func (d *device) start() {
	stop := make(chan struct{})
	d.stop = func() { close(stop) }
	go func() {
		<-time.After(20 * time.Millisecond) // a real device takes longer
		opened, err := openDriver(d.instance.PProtocol)
		if err != nil {
			fmt.Fprintln(os.Stderr, "open", d.instance.ID, err)
			return
		}
		d.driver = opened
		d.run(stop)
	}()
}

// run writes each desired value and reports each property in its cycle.
func (d *device) run(stop <-chan struct{}) {
	fmt.Println("started", d.instance.ID, string(d.instance.PProtocol.ConfigData))
	for _, twin := range d.instance.Twins {
		kind := strings.ToLower(twin.Property.PProperty.DataType)
		way, err := decode[visitors](twin.Property.Visitors)
		if err != nil {
			fmt.Fprintln(os.Stderr, "visitors:", err)
			continue
		}
		if twin.Property.PProperty.AccessMode == "ReadWrite" && twin.ObservedDesired.Value != "" {
			value, err := common.Convert(kind, twin.ObservedDesired.Value)
			if err != nil {
				fmt.Fprintln(os.Stderr, "convert:", err)
				continue
			}
			if kind == "int" {
				_ = value.(int64) // drivers rely on it
			}
			if err := d.driver.write(twin.PropertyName, way, value); err != nil {
				fmt.Fprintln(os.Stderr, "write:", err)
			} else {
				fmt.Println("wrote", d.instance.Namespace+"/"+d.instance.Name, twin.PropertyName, twin.ObservedDesired.Value)
			}
		}
		if twin.Property.ReportToCloud {
			go d.report(stop, twin, way)
		}
	}
}

// report reports a property in its cycle. It prints what edgecore has answered, so that a test can compare the hub with it.
func (d *device) report(stop <-chan struct{}, twin common.Twin, way visitors) {
	cycle := time.Duration(twin.Property.CollectCycle) * time.Millisecond
	if cycle == 0 {
		cycle = time.Second
	}
	ticker := time.NewTicker(cycle)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		read, err := d.driver.read(twin.PropertyName, way)
		if err != nil {
			fmt.Fprintln(os.Stderr, "read:", err)
			continue
		}
		value, err := common.ConvertToString(read)
		if err != nil {
			fmt.Fprintln(os.Stderr, "value:", err)
			continue
		}
		kind := twin.ObservedDesired.Metadata.Type
		if err := grpcclient.ReportDeviceStatus(&dmiapi.ReportDeviceStatusRequest{
			DeviceName: d.instance.Name, DeviceNamespace: d.instance.Namespace,
			ReportedDevice: &dmiapi.DeviceStatus{Twins: parse.ConvMsgTwinToGrpc(map[string]*common.MsgTwin{twin.PropertyName: {
				Actual:   &common.TwinValue{Value: &value},
				Expected: &common.TwinValue{Value: &twin.ObservedDesired.Value},
				Metadata: &common.TypeMetadata{Type: kind},
			}})},
		}); err != nil {
			fmt.Println("report", err)
			continue
		}
		fmt.Println("answered", d.instance.Namespace+"/"+d.instance.Name, twin.PropertyName, value)
	}
}

// UpdateDev stops a device, if it is there, and starts it as it is now. It prints its call, so that a load test can time it.
func (p *panel) UpdateDev(model *common.DeviceModel, instance *common.DeviceInstance) {
	for _, twin := range instance.Twins {
		fmt.Println("called", instance.Namespace+"/"+instance.Name, twin.PropertyName, twin.ObservedDesired.Value)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.devices[instance.ID]; old != nil {
		old.driver.close()
		old.stop()
	}
	d := &device{instance: *instance}
	p.devices[instance.ID], p.models[model.ID] = d, *model
	d.start()
}

// RemoveDevice stops a device without looking whether it is there.
func (p *panel) RemoveDevice(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.devices[id]
	delete(p.devices, id)
	d.driver.close()
	d.stop()
	fmt.Println("removed", id)
	return nil
}

// GetDevice returns a device.
func (p *panel) GetDevice(id string) (any, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d, ok := p.devices[id]
	if !ok {
		return nil, fmt.Errorf("device %s not found", id)
	}
	return d, nil
}

// GetModel returns a model.
func (p *panel) GetModel(id string) (common.DeviceModel, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.models[id]
	if !ok {
		return m, fmt.Errorf("model %s not found", id)
	}
	return m, nil
}

// UpdateModel creates or replaces a model.
func (p *panel) UpdateModel(model *common.DeviceModel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.models[model.ID] = *model
}

// RemoveModel removes a model.
func (p *panel) RemoveModel(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.models, id)
}

// errREST is the answer of what only the framework's HTTP server calls, but for calls of methods.
var errREST = errors.New("this mapper has only methods")

// UpdateDevTwins is for HTTP.
func (*panel) UpdateDevTwins(string, []common.Twin) error { return errREST }

// DealDeviceTwinGet is for HTTP.
func (*panel) DealDeviceTwinGet(string, string) (any, error) { return nil, errREST }

// WriteDevice is a call of a method.
func (p *panel) WriteDevice(_, id, property, data string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.devices[id]
	if d == nil || d.driver == nil {
		return fmt.Errorf("no device %s", id)
	}
	value, err := common.Convert("int", data)
	if err != nil {
		return err
	}
	for _, twin := range d.instance.Twins {
		if twin.PropertyName != property {
			continue
		}
		way, err := decode[visitors](twin.Property.Visitors)
		if err != nil {
			return err
		}
		return d.driver.write(property, way, value)
	}
	return fmt.Errorf("device %s has no property %s", id, property)
}

// GetTwinResult is for HTTP.
func (*panel) GetTwinResult(string, string) (string, string, error) { return "", "", errREST }

// GetDeviceMethod is for HTTP.
func (*panel) GetDeviceMethod(string) (map[string][]string, map[string]string, error) {
	return nil, nil, errREST
}
