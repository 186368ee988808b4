package devices_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/frond-edge/frond/api/config"
	kinds "github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/test/kit"
)

// cutMapper reports for all devices, as a mapper does, over several cuts. What was answered with OK is promised.
type cutMapper struct {
	cutApps
	client dmipb.DeviceManagerServiceClient
}

// newCutMapper returns a mapper of the socket in a folder.
func newCutMapper(t *testing.T, dir string) *cutMapper {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "dmi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond}}))
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, conn.Close()) })
	return &cutMapper{cutApps: cutApps{T: t}, client: dmipb.NewDeviceManagerServiceClient(conn)}
}

// report reports a value of a device.
func (m *cutMapper) report(ctx context.Context, device int, value string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err := m.client.ReportDeviceStatus(ctx, &dmipb.ReportDeviceStatusRequest{
		DeviceName: fmt.Sprint("d", device), DeviceNamespace: "default", ReportedDevice: &dmipb.DeviceStatus{Twins: []*dmipb.Twin{{
			PropertyName: "temp", Reported: &dmipb.TwinProperty{Value: value, Metadata: map[string]string{"type": "int"}},
		}}},
	}, grpc.WaitForReady(true))
	return err
}

// awaitDevice waits until the gateway knows a device: before, a report is answered with OK and dropped.
func (m *cutMapper) awaitDevice(p *poweredGateway, device int) {
	m.Helper()
	kit.Succeeds(m, time.Minute, func() error {
		if err := m.report(m.Context(), device, m.nextValue(device)); err != nil {
			return err
		}
		if p.outbox.last(fmt.Sprint("d", device)) == "" {
			return errors.New("the gateway has not reported the device")
		}
		return nil
	})
}

// start returns what reports rising values of a device, until the power is cut.
func (m *cutMapper) start(_ *poweredGateway, device int) (run func(ctx context.Context)) {
	return func(ctx context.Context) {
		for ctx.Err() == nil {
			if value := m.nextValue(device); m.report(ctx, device, value) == nil {
				m.promise(device, value)
			}
		}
	}
}

// After power cuts at any moment every report of a mapper that was answered with OK is in the hub once, in order.
func TestDevices_PowerCutOfMapper(t *testing.T) {
	hub, js := startCloud(t)
	dir, err := os.MkdirTemp("", "dmi") //nolint:usetesting // the path of a socket is short
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, os.RemoveAll(dir)) })
	withMappers := func(d *config.Devices) { d.DMI = config.DMI{Enabled: true, Dir: dir, AllowHost: true} }
	address, image, seed, mapper := freeAddress(t), "", rand.Uint64(), newCutMapper(t, dir)
	t.Logf("seed %d", seed)
	for cut := range uint64(3) {
		p := boot(t, hub, image, address, withMappers)
		if cut == 0 {
			p.setModel("INT")
			for i := range cutDevices {
				name := fmt.Sprint("d", i)
				p.apply(kinds.DevicesResource, name, fmt.Sprintf(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":%q,"namespace":"default","uid":"u-%s",
					"resourceVersion":"9","generation":1},"spec":{"nodeName":"edge-1","deviceModelRef":{"name":"model"},"protocol":{"protocolName":"virtual"},"properties":[{"name":"temp"}]}}`, name, name))
			}
		}
		for i := range cutDevices {
			mapper.awaitDevice(p, i)
		}
		image = mapper.cut(p, 40+rand.IntN(100), (seed+cut)*(cut%2), mapper.start) // the first and the last without any unsynced write
	}
	boot(t, hub, image, address, withMappers)
	for i := range cutDevices {
		kit.Succeeds(t, time.Minute, func() error { return mapper.report(t.Context(), i, lastValue) })
		mapper.promise(i, lastValue)
	}
	mapper.check(js)
}
