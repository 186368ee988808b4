package dmi_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// slowTwin takes no report until it is opened.
type slowTwin struct {
	*fakeTwin
	opened chan struct{}
}

func (s *slowTwin) ReportValues(ctx context.Context, id types.NamespacedName, u devicetwin.Update, at time.Time) error {
	select {
	case <-s.opened:
		return s.fakeTwin.ReportValues(ctx, id, u, at)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestBadInput_FloodOfAMapper: a mapper that reports faster than its values can be stored waits, and is told so when its time is over. Another mapper
// registers and reports its state meanwhile.
func TestBadInput_FloodOfAMapper(t *testing.T) {
	const flood = 400
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.setDevice("default/b", "opcua", "1")
	slow := &slowTwin{fakeTwin: g.twin, opened: make(chan struct{})}
	g.values = slow
	g.start()
	flooder, other := as(t.Context(), "a", os.Geteuid()), as(t.Context(), "", os.Geteuid())
	if code := registerAs(flooder, g, "modbus"); code != codes.OK {
		t.Fatal(code)
	}
	ctx, stop := context.WithCancel(flooder)
	answers := make(chan codes.Code, flood)
	var reports sync.WaitGroup
	for i := range flood {
		reports.Go(func() {
			_, err := g.server.Service().ReportDeviceStatus(ctx, &dmipb.ReportDeviceStatusRequest{
				DeviceNamespace: "default", DeviceName: "a",
				ReportedDevice: &dmipb.DeviceStatus{Twins: []*dmipb.Twin{{PropertyName: "p", Reported: &dmipb.TwinProperty{Value: fmt.Sprint(i)}}}},
			})
			answers <- status.Code(err)
		})
	}
	if code := registerAs(other, g, "opcua"); code != codes.OK {
		t.Errorf("another mapper's registration: %v", code)
	}
	if code := report(other, g, "b"); code != codes.OK {
		t.Errorf("another mapper's report: %v", code)
	}
	stop() // the time of all is over
	reports.Wait()
	for range flood {
		if code := <-answers; code != codes.ResourceExhausted && code != codes.Unavailable {
			t.Errorf("a report of the flood: %v", code)
		}
	}
	close(slow.opened)
	if code := report(flooder, g, "a"); code != codes.OK {
		t.Errorf("the next report: %v", code)
	}
}
