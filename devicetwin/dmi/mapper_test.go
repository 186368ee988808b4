package dmi_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// testMapper behaves as a mapper of KubeEdge's framework 1.21: it registers before it listens, and what ends such a mapper ends it.
type testMapper struct {
	dmipb.UnimplementedDeviceMapperServiceServer
	t        testing.TB
	dir      string
	protocol string
	server   *grpc.Server
	// updated gets a value after each UpdateDevice, if there is room.
	updated chan struct{}

	// driver is held by each call that changes something, also while a driver is stuck.
	driver sync.Mutex

	mu sync.Mutex // guards all below
	// models are by name alone after a registration, by namespace and name after a call, as in the framework.
	models  map[string]*dmipb.DeviceModel
	devices map[string]*dmipb.Device
	// updates counts the starts of each device.
	updates map[string]int
	changed map[string]time.Time
	fatal   error
	// hang blocks all calls until the test ends.
	hang chan struct{}
	// stuck blocks a driver, whatever the call's limit, until it is closed.
	stuck chan struct{}
	// refuse is the answer to each UpdateDevice.
	refuse error
}

// address is the socket of the mapper.
func (m *testMapper) address() string { return filepath.Join(m.dir, m.protocol+".sock") }

// startMapper registers a mapper and lets it listen.
func startMapper(t testing.TB, dir, protocol string) *testMapper {
	t.Helper()
	m := &testMapper{
		t: t, dir: dir, protocol: protocol, updated: make(chan struct{}, 1), models: map[string]*dmipb.DeviceModel{}, devices: map[string]*dmipb.Device{},
		updates: map[string]int{}, changed: map[string]time.Time{},
	}
	if err := m.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.listen()
	t.Cleanup(func() {
		m.kill()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.fatal != nil {
			t.Errorf("the mapper of %s ended: %v", protocol, m.fatal)
		}
	})
	return m
}

// dialManager returns a client of edgecore, with a connection of its own.
func dialManager(t testing.TB, dir string) (dmipb.DeviceManagerServiceClient, *grpc.ClientConn) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "dmi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return dmipb.NewDeviceManagerServiceClient(conn), conn
}

func (m *testMapper) register(ctx context.Context) error {
	client, conn := dialManager(m.t, m.dir)
	defer conn.Close() //nolint:errcheck // nothing was written
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	response, err := client.MapperRegister(ctx, &dmipb.MapperRegisterRequest{WithData: true, Mapper: &dmipb.MapperInfo{
		Name: m.protocol + "-mapper", Protocol: m.protocol, Address: []byte(m.address()), State: "ok",
	}})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(response.GetDeviceList()) == 0 || len(response.GetModelList()) == 0 {
		return nil
	}
	for _, model := range response.GetModelList() {
		m.models[model.GetName()] = model
	}
	for _, d := range response.GetDeviceList() {
		if err := checkDevice(d, m.models[d.GetSpec().GetDeviceModelReference()]); err != nil {
			m.fatal = errors.Join(m.fatal, err)
		}
		m.start(d)
	}
	return nil
}

func (m *testMapper) start(d *dmipb.Device) {
	id := d.GetNamespace() + "/" + d.GetName()
	m.devices[id] = d
	m.updates[id]++
	m.changed[id] = time.Now()
}

func (m *testMapper) listen() {
	m.t.Helper()
	if err := os.Remove(m.address()); err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: m.address(), Net: "unix"})
	if err != nil {
		m.t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false) // a mapper that is killed leaves its socket
	server := grpc.NewServer()
	dmipb.RegisterDeviceMapperServiceServer(server, m)
	m.server = server
	done := make(chan struct{})
	m.t.Cleanup(func() { server.Stop(); <-done })
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
}

// kill ends the mapper's process, as far as others can see.
func (m *testMapper) kill() {
	m.mu.Lock()
	if m.hang != nil {
		close(m.hang)
		m.hang = nil
	}
	m.mu.Unlock()
	m.server.Stop()
}

// restart is a new process: it has nothing, registers and listens.
func (m *testMapper) restart() {
	m.t.Helper()
	m.mu.Lock()
	clear(m.models)
	clear(m.devices)
	m.mu.Unlock()
	if err := m.register(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	m.listen()
}

// set changes how the mapper answers.
func (m *testMapper) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// device returns a device as the mapper has it, or nil.
func (m *testMapper) device(id string) *dmipb.Device {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.devices[id]
}

// desired returns the desired value that the mapper works with, for the property p; "-": it does not have the device.
func (m *testMapper) desired(id string) string {
	d := m.device(id)
	if d == nil {
		return "-"
	}
	return d.GetSpec().GetProperties()[0].GetDesired().GetValue()
}

func (m *testMapper) starts(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.updates[id]
}

func (m *testMapper) ids() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.devices))
}

// checkDevice returns what of a device ends a mapper of the framework.
func checkDevice(d *dmipb.Device, model *dmipb.DeviceModel) error {
	if d.GetSpec().GetProtocol().GetConfigData() == nil || d.GetStatus() == nil || model == nil {
		return fmt.Errorf("device %s has no protocol, status or model", d.GetName())
	}
	for _, p := range d.GetSpec().GetProperties() {
		if p.GetDesired() == nil || p.GetVisitors().GetConfigData() == nil {
			return fmt.Errorf("property %s has no desired value or visitors", p.GetName())
		}
		if !slices.ContainsFunc(model.GetSpec().GetProperties(), func(q *dmipb.ModelProperty) bool { return q.GetName() == p.GetName() }) {
			return fmt.Errorf("property %s is not in the model", p.GetName())
		}
	}
	return nil
}

func (m *testMapper) die(format string, args ...any) error {
	m.fatal = errors.Join(m.fatal, fmt.Errorf(format, args...))
	return m.fatal
}

// begin waits while the mapper hangs.
func (m *testMapper) begin(ctx context.Context) {
	m.mu.Lock()
	hang := m.hang
	m.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
		}
	}
}

func (m *testMapper) UpdateDevice(ctx context.Context, r *dmipb.UpdateDeviceRequest) (*dmipb.UpdateDeviceResponse, error) {
	m.begin(ctx)
	m.driver.Lock()
	defer m.driver.Unlock()
	m.mu.Lock()
	stuck := m.stuck
	m.mu.Unlock()
	if stuck != nil {
		<-stuck
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	d := r.GetDevice()
	id := d.GetNamespace() + "/" + d.GetName()
	model := m.models[d.GetNamespace()+"/"+d.GetSpec().GetDeviceModelReference()]
	if model == nil {
		return nil, fmt.Errorf("deviceModel of %s not found", id)
	}
	if err := checkDevice(d, model); err != nil {
		return nil, m.die("UpdateDevice: %w", err)
	}
	if since := time.Since(m.changed[id]); since < settle/2 {
		return nil, m.die("UpdateDevice %s %v after the change before", id, since)
	}
	m.start(d)
	select {
	case m.updated <- struct{}{}:
	default:
	}
	return &dmipb.UpdateDeviceResponse{}, nil
}

func (m *testMapper) RemoveDevice(ctx context.Context, r *dmipb.RemoveDeviceRequest) (*dmipb.RemoveDeviceResponse, error) {
	m.begin(ctx)
	m.driver.Lock()
	defer m.driver.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	id := r.GetDeviceNamespace() + "/" + r.GetDeviceName()
	if m.devices[id] == nil {
		return nil, m.die("RemoveDevice %s, which it does not have", id)
	}
	delete(m.devices, id)
	return &dmipb.RemoveDeviceResponse{}, nil
}

func (m *testMapper) CreateDeviceModel(ctx context.Context, r *dmipb.CreateDeviceModelRequest) (*dmipb.CreateDeviceModelResponse, error) {
	m.begin(ctx)
	m.driver.Lock()
	defer m.driver.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.models[r.GetModel().GetNamespace()+"/"+r.GetModel().GetName()] = r.GetModel()
	return &dmipb.CreateDeviceModelResponse{}, nil
}

func (m *testMapper) RemoveDeviceModel(_ context.Context, r *dmipb.RemoveDeviceModelRequest) (*dmipb.RemoveDeviceModelResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.models, r.GetModelNamespace()+"/"+r.GetModelName())
	return &dmipb.RemoveDeviceModelResponse{}, nil
}

func (m *testMapper) GetDevice(context.Context, *dmipb.GetDeviceRequest) (*dmipb.GetDeviceResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return nil, m.die("GetDevice")
}
