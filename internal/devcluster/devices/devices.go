// Package devices runs the virtual sensors of a development cluster.
//
// Each is a Device with a model of its own in Kubernetes, a folder below devices/ in the cluster's folder, and a process, recorded in the folder's
// state. The process is outside its gateway: it survives the gateway's reboot and dials its broker from the gateway's network. Only StartDevice
// starts it; StopDevice, DeleteDevice and the cluster's down end it.
package devices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/internal/devcluster/bootstrap"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/gateway"
)

// Devices are the virtual sensors of a cluster.
type Devices struct {
	f   *folder.Folder
	api *gateway.API
}

// New returns the virtual sensors of a cluster.
func New(f *folder.Folder, api *gateway.API) *Devices { return &Devices{f: f, api: api} }

// Device is a virtual sensor to start.
type Device struct {
	Namespace, Name string
	Edge            string
	// Interval is the time between two samples.
	Interval time.Duration
}

// MinInterval is the shortest time between two samples. The gateway takes 200 messages a second of a device.
const MinInterval = 10 * time.Millisecond

// DeviceStatus is a virtual sensor at one moment; its JSON is the stable output of frond dev device ls.
type DeviceStatus struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Edge      string `json:"gateway"`
	Running   bool   `json:"running"`
	PID       int    `json:"pid,omitempty"`
	Log       string `json:"log"`
	sensor.Status
}

// record is the content of a sensor's configuration file.
type record struct {
	sensor.Config
	Edge string `json:"gateway"`
}

const (
	recordFile = "config.json"
	statusFile = "status.json"
)

// folderName is the folder of a device below devices/. A namespace has no dot.
func folderName(namespace, name string) string { return namespace + "." + name }

// part is the name of a device's process in the state, and of its log.
func part(folderName string) string { return "device-" + folderName }

func (d *Devices) path(elem ...string) string {
	return d.f.Layout.Path(append([]string{folder.DevicesDir}, elem...)...)
}

// manifest is what a virtual sensor is in Kubernetes.
const manifest = `apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: %[2]q, namespace: %[1]q}
spec:
  protocol: mqtt
  properties:
  - {name: ` + sensor.Sample + `, type: INT, accessMode: ReadOnly}
  - {name: ` + sensor.Setpoint + `, type: STRING, accessMode: ReadWrite}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: %[2]q, namespace: %[1]q}
spec:
  deviceModelRef: {name: %[2]q}
  nodeName: %[3]q
  protocol: {protocolName: mqtt}
  properties: [{name: ` + sensor.Sample + `}, {name: ` + sensor.Setpoint + `}]
`

// StartDevice creates a Device and its model and starts its process, which goes on with its numbers if it ran before. It does not wait until the
// gateway has the Device: the sensor does.
func (d *Devices) StartDevice(ctx context.Context, v Device) error {
	if err := v.validate(); err != nil {
		return err
	}
	return d.f.Update(ctx, func() error {
		if err := d.f.CheckGateway(v.Edge); err != nil {
			return err
		}
		if !d.f.State.Spec.Devices {
			return errors.New("the gateways of this cluster have no broker: run frond dev up --devices")
		}
		dir := folderName(v.Namespace, v.Name)
		if id := d.f.State.Processes[part(dir)]; id.Alive() {
			return fmt.Errorf("device %s/%s runs already (pid %d)", v.Namespace, v.Name, id.PID)
		}
		if _, err := bootstrap.Kubectl(ctx, d.f.Layout, fmt.Sprintf(manifest, v.Namespace, v.Name, v.Edge), "apply", "-f", "-"); err != nil {
			return err
		}
		id, err := d.launch(v, dir)
		if err != nil {
			return err
		}
		d.f.Logf("device %s/%s reports to %s (pid %d)", v.Namespace, v.Name, v.Edge, id.PID)
		return nil
	})
}

func (v Device) validate() error {
	var errs []error
	for _, problem := range validation.IsDNS1123Label(v.Namespace) {
		errs = append(errs, fmt.Errorf("namespace %q: %s", v.Namespace, problem))
	}
	for _, problem := range validation.IsDNS1123Subdomain(v.Name) {
		errs = append(errs, fmt.Errorf("name %q: %s", v.Name, problem))
	}
	if v.Interval < MinInterval {
		errs = append(errs, fmt.Errorf("interval %s: choose at least %s", v.Interval, MinInterval))
	}
	return errors.Join(errs...)
}

// launch writes a sensor's configuration and starts its process. The caller has locked the folder.
func (d *Devices) launch(v Device, dir string) (daemon.Identity, error) {
	r := record{Edge: v.Edge, Config: sensor.Config{
		Namespace: v.Namespace, Name: v.Name, Broker: d.api.MQTTAddress(v.Edge), Interval: v.Interval, StatusFile: d.path(dir, statusFile),
	}}
	if d.f.State.Spec.Runtime == folder.Containerd {
		r.NetworkNamespace = d.f.Network().Namespace(v.Edge)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return daemon.Identity{}, fmt.Errorf("encode configuration: %w", err)
	}
	if err := folder.WriteFile(d.path(dir, recordFile), data, 0o600); err != nil {
		return daemon.Identity{}, err
	}
	id, err := daemon.Start(daemon.Command{
		Path: d.f.State.Programs.Frond, Args: []string{"dev", "sensor", "--config", d.path(dir, recordFile)},
		Dir: d.f.Layout.Dir, Log: d.f.Layout.LogFile(part(dir)),
	})
	if err != nil {
		return id, fmt.Errorf("start device %s/%s: %w", v.Namespace, v.Name, err)
	}
	d.f.State.Processes[part(dir)] = id
	return id, d.f.Save()
}

// stopGrace is the time a sensor has to say that it is offline, over a broker that may be gone.
const stopGrace = 10 * time.Second

// ErrNoDevice says that there is no virtual sensor of a name.
var ErrNoDevice = errors.New("no such virtual device: frond dev device ls lists them")

// StopDevice ends a sensor's process and returns its last status. The Device stays, so that what still waits on the gateway reaches the hub.
func (d *Devices) StopDevice(ctx context.Context, namespace, name string) (last DeviceStatus, err error) {
	return last, d.f.Update(ctx, func() (err error) {
		last, err = d.end(ctx, namespace, name)
		return err
	})
}

// DeleteDevice is StopDevice, and then deletes the Device and its model and forgets the numbers. Samples that still wait on the gateway become
// dead letters, as those of any Device that is deleted; those in the hub stay.
func (d *Devices) DeleteDevice(ctx context.Context, namespace, name string) (last DeviceStatus, err error) {
	return last, d.f.Update(ctx, func() (err error) {
		if last, err = d.end(ctx, namespace, name); err != nil {
			return err
		}
		for _, kind := range []string{"device.devices.kubeedge.io", "devicemodel.devices.kubeedge.io"} {
			if _, err := bootstrap.Kubectl(ctx, d.f.Layout, "", "delete", kind, name, "-n", namespace, "--ignore-not-found"); err != nil {
				return err
			}
		}
		dir := folderName(namespace, name)
		if err := os.RemoveAll(d.path(dir)); err != nil {
			return fmt.Errorf("remove files: %w", err)
		}
		delete(d.f.State.Processes, part(dir))
		return d.f.Save()
	})
}

// end ends the process of a sensor, if it runs. The caller has locked the folder.
func (d *Devices) end(ctx context.Context, namespace, name string) (DeviceStatus, error) {
	dir := folderName(namespace, name)
	if _, err := d.readRecord(dir); err != nil {
		return DeviceStatus{}, fmt.Errorf("%s/%s: %w", namespace, name, err)
	}
	if err := d.f.State.Processes[part(dir)].Stop(ctx, stopGrace); err != nil {
		return DeviceStatus{}, fmt.Errorf("stop device %s/%s: %w", namespace, name, err)
	}
	return d.readDevice(dir)
}

// StopAllDevices ends the process of each sensor, for a cluster that goes down. The caller has locked the folder.
func (d *Devices) StopAllDevices(ctx context.Context) error {
	var errs []error
	for name, id := range d.f.State.Processes {
		if strings.HasPrefix(name, part("")) {
			if err := id.Kill(ctx); err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ListDevices lists the virtual sensors by namespace and name, running or not.
func (d *Devices) ListDevices() ([]DeviceStatus, error) {
	files, err := filepath.Glob(d.path("*", recordFile))
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	slices.Sort(files)
	list := []DeviceStatus{}
	for _, file := range files {
		status, err := d.readDevice(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		list = append(list, status)
	}
	return list, nil
}

func (d *Devices) readRecord(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(d.path(dir, recordFile))
	if errors.Is(err, os.ErrNotExist) {
		return r, ErrNoDevice
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read configuration of device: %w", err)
	}
	return r, nil
}

func (d *Devices) readDevice(dir string) (DeviceStatus, error) {
	r, err := d.readRecord(dir)
	if err != nil {
		return DeviceStatus{}, err
	}
	id := d.f.State.Processes[part(dir)]
	s := DeviceStatus{Namespace: r.Namespace, Name: r.Name, Edge: r.Edge, Running: id.Alive(), Log: d.f.Layout.LogFile(part(dir))}
	if s.Status, err = sensor.ReadStatus(r.StatusFile); err != nil {
		return s, err
	}
	if s.Running {
		s.PID = id.PID
	} else {
		s.Connected = false // it was killed
	}
	return s, nil
}
