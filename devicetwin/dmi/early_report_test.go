package dmi_test

import (
	"context"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// reportValue is a report of the value 7 of the property p, as a mapper of the host.
func reportValue(ctx context.Context, g *gateway, device string) codes.Code {
	_, err := g.server.Service().ReportDeviceStatus(as(ctx, "", os.Geteuid()), &dmipb.ReportDeviceStatusRequest{
		DeviceNamespace: "default", DeviceName: device,
		ReportedDevice: &dmipb.DeviceStatus{Twins: []*dmipb.Twin{{PropertyName: "p", Reported: &dmipb.TwinProperty{Value: "7"}}}},
	})
	return status.Code(err)
}

// TestServer_ReportBeforeSync: a mapper does not register again when edgecore restarts, so its reports may come before the Devices of the store are
// known. Such a report waits; it is not taken for one of an unknown device, which is answered and dropped.
func TestServer_ReportBeforeSync(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.unsynced = true
	g.start()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if code := reportValue(ctx, g, "a"); code != codes.Unavailable {
		t.Errorf("a report that cannot wait longer: %v", code)
	}
	answer := make(chan codes.Code, 1)
	go func() { answer <- reportValue(t.Context(), g, "a") }()
	g.sync()
	if code := <-answer; code != codes.OK {
		t.Errorf("a report that waited: %v", code)
	}
	g.twin.mu.Lock()
	defer g.twin.mu.Unlock()
	if p := g.twin.values["default/a/p"]; p.Actual == nil || *p.Actual != "7" || g.twin.reports != 1 {
		t.Errorf("%d reports were taken, the value is %v", g.twin.reports, p.Actual)
	}
}
