package dmipb_test

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	_ "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1" // a name that both have would end this process before any test

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// TestServices_NamesOnTheWire: the paths of the calls are KubeEdge's, while no message takes a name of the kubelet's device plugin API.
func TestServices_NamesOnTheWire(t *testing.T) {
	for got, want := range map[string]string{
		dmipb.DeviceManagerService_MapperRegister_FullMethodName:     "/v1beta1.DeviceManagerService/MapperRegister",
		dmipb.DeviceManagerService_ReportDeviceStatus_FullMethodName: "/v1beta1.DeviceManagerService/ReportDeviceStatus",
		dmipb.DeviceManagerService_ReportDeviceStates_FullMethodName: "/v1beta1.DeviceManagerService/ReportDeviceStates",
		dmipb.DeviceMapperService_UpdateDevice_FullMethodName:        "/v1beta1.DeviceMapperService/UpdateDevice",
	} {
		if got != want {
			t.Errorf("path %s, want %s", got, want)
		}
	}
	messages := (&dmipb.Device{}).ProtoReflect().Descriptor().ParentFile().Messages()
	for i := range messages.Len() {
		if name := messages.Get(i).FullName(); name.Parent() != protoreflect.FullName("frond.dmi.v1beta1") {
			t.Errorf("message %s would collide in this process", name)
		}
	}
}
