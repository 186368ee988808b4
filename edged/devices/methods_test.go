package devices_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/devicecall"
	kinds "github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/edged/devices/methodcall"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/mappertest"
)

// A method is called at the REST server of KubeEdge's framework, in the mapper that has registered the protocol, and the device has the value.
func TestMethods_OfTheFramework(t *testing.T) {
	g := newGateway(t)
	dir, err := os.MkdirTemp("", "dmi") //nolint:usetesting // the path of a socket is short
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, os.RemoveAll(dir)) })
	g.start(func(d *config.Devices) { d.DMI = config.DMI{Enabled: true, Dir: dir, AllowHost: true} })
	ports, err := kit.FreePorts(1)
	kit.Must(t, err)
	calls := methodcall.New(g.part, methodcall.PodLocator{Identity: g.part.IdentityOf, HostPort: ports[0]}, zaptest.NewLogger(t))
	request := &devicecall.EdgeRequest{Request: devicecall.Request{Method: "adjust", Value: "44"}, Namespace: "default", Name: "a"}
	g.setModel("INT")
	g.apply(kinds.DevicesResource, "a", `{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"a","namespace":"default","uid":"u-a",
		"resourceVersion":"9","generation":9},"spec":{"nodeName":"edge-1","deviceModelRef":{"name":"model"},"protocol":{"protocolName":"virtual","configData":{"x":1}},
		"methods":[{"name":"adjust","propertyNames":["temp"]}],"properties":[{"name":"temp","desired":{"value":"21"},"reportToCloud":true,"collectCycle":50,
		"reportCycle":50,"visitors":{"protocolName":"virtual","configData":{"dataType":"int"}}}]}}`)
	if a := calls.Call(t.Context(), request); a.Outcome != devicecall.NotSent || !strings.Contains(a.Reason, "no mapper has registered") {
		t.Errorf("before the mapper is there: %+v", a)
	}
	mappertest.Start(t, mappertest.Build(t, filepath.Join("..", "..")), mappertest.WriteConfigWithREST(t, dir, ports[0]))
	g.reported("a", `"reported":{"value":"21"`)
	kit.Succeeds(t, time.Minute, func() error { // its REST server starts beside its devices
		if a := calls.Call(t.Context(), request); a.Outcome != devicecall.Answered || a.Status != 200 || !strings.Contains(string(a.Body), "successfully") {
			return fmt.Errorf("%+v %s", a, a.Body)
		}
		return nil
	})
	g.reported("a", `"reported":{"value":"44"`)
}
