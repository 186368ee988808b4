package devices_test

import (
	"fmt"
	"testing"
	"time"

	kinds "github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// setReduced gives the gateway a Device whose temp has a deadband.
func (g *gateway) setReduced(name, deadband string) {
	g.Helper()
	g.apply(kinds.DevicesResource, name, fmt.Sprintf(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":%q,"namespace":"default","uid":"u-%s",
		"resourceVersion":"%d","generation":1,"annotations":{"frond.io/deadband.temp":%q}},"spec":{"nodeName":"edge-1","deviceModelRef":{"name":"model"},"properties":[{"name":"temp"}]}}`,
		name, name, g.applied+1, deadband))
}

// samples waits until a number of samples was kept, and another was left out.
func (g *gateway) samples(kept, reduced float64) {
	g.Helper()
	kit.Within(g.T, time.Minute, fmt.Sprintf("%v samples are kept and %v left out", kept, reduced), func() bool {
		return streamstest.SumCounters(g.T, g.metrics, "frond_telemetry_appended_total", "") == kept && streamstest.SumCounters(g.T, g.metrics, "frond_telemetry_reduced_total", "") == reduced
	})
}

// Telemetry is reduced, the twin shows the last value. A wrong annotation is a condition, and all samples are kept.
func TestDevices_ReducesSamples(t *testing.T) {
	g := newGateway(t)
	g.setModel("INT")
	g.setReduced("boiler", "5")
	defer g.start(nil)()
	app := g.app(nil)
	g.publish(app, "boiler", "20")
	g.publish(app, "boiler", "23")
	g.publish(app, "boiler", "24")
	g.reported("boiler", `"value":"24"`)
	g.reported("boiler", `"reason":"Reducing"`)
	g.samples(1, 2)
	g.setReduced("boiler", "wide")
	g.reported("boiler", `frond.io/deadband.temp: \"wide\" is not a number above 0`)
	g.publish(app, "boiler", "24")
	g.reported("boiler", `"reason":"NotUnderstood"`)
	g.samples(2, 2)
}
