package message_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/devicetwin/dmi/message"
)

func raw(json string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(json)} }

func wrap(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func deviceOf(properties ...devices.DeviceProperty) *devices.Device {
	return &devices.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d"},
		Spec: devices.DeviceSpec{
			DeviceModelRef: &corev1.LocalObjectReference{Name: "m"}, Protocol: devices.ProtocolConfig{ProtocolName: "modbus"}, Properties: properties,
		},
	}
}

func modelOf(properties ...devices.ModelProperty) *devices.DeviceModel {
	return &devices.DeviceModel{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}, Spec: devices.DeviceModelSpec{Properties: properties},
	}
}

// TestDevice_AllFields converts a Device that uses each field.
func TestDevice_AllFields(t *testing.T) {
	device := deviceOf(devices.DeviceProperty{
		Name: "temp", Desired: &devices.TwinProperty{Value: "20", Metadata: map[string]string{"unit": "C"}},
		Visitors:    devices.ProtocolConfig{ProtocolName: "modbus", ConfigData: raw(`{"register":"Coil","offset":2}`)},
		ReportCycle: 5, CollectCycle: 6, ReportToCloud: true,
		PushMethod: &devices.PushMethod{
			HTTP: &devices.PushMethodHTTP{HostName: "http://h", Port: 80, RequestPath: "/p", Timeout: 7},
			MQTT: &devices.PushMethodMQTT{Address: "tcp://h", Topic: "t", QoS: 1, Retained: true},
			OTEL: &devices.PushMethodOTEL{EndpointURL: "http://o"},
			DBMethod: &devices.DBMethodConfig{
				Influxdb2: &devices.DBMethodInfluxdb2{
					ClientConfig: &devices.Influxdb2ClientConfig{URL: "u", Org: "o", Bucket: "b"},
					DataConfig:   &devices.Influxdb2DataConfig{Measurement: "m", Tag: map[string]string{"a": "b"}, FieldKey: "f"},
				},
				Redis:    &devices.DBMethodRedis{ClientConfig: &devices.RedisClientConfig{Addr: "a", DB: 1, PoolSize: 2, MinIdleConns: 3}},
				TDEngine: &devices.DBMethodTDEngine{ClientConfig: &devices.TDEngineClientConfig{Addr: "a", DBName: "n"}},
				MySQL:    &devices.DBMethodMySQL{ClientConfig: &devices.MySQLClientConfig{Addr: "a", Database: "d", UserName: "u"}},
			},
			AnomalyDetection: raw(`{"limit":3}`),
		},
	})
	device.Spec.Protocol.ConfigData = raw(`{"port":502,"name":"x","on":true}`)
	device.Spec.Methods = []devices.DeviceMethod{{Name: "set", Description: "sets", PropertyNames: []string{"temp"}}}
	device.Spec.StateReport = &devices.DeviceReportRule{ReportToCloud: true, ReportCycle: 9}
	got, notes := message.Device(device, modelOf(devices.ModelProperty{Name: "temp", Type: "INT", AccessMode: "ReadWrite"}), nil)
	want := &dmipb.Device{
		Name: "d", Namespace: "default", Status: &dmipb.DeviceStatus{ReportToCloud: true, ReportCycle: 9},
		Spec: &dmipb.DeviceSpec{
			DeviceModelReference: "m",
			Protocol: &dmipb.ProtocolConfig{ProtocolName: "modbus", ConfigData: &dmipb.CustomizedValue{Data: map[string]*anypb.Any{
				"port": wrap(t, wrapperspb.Float(502)), "name": wrap(t, wrapperspb.String("x")), "on": wrap(t, wrapperspb.Bool(true)),
			}}},
			Methods: []*dmipb.DeviceMethod{{Name: "set", Description: "sets", PropertyNames: []string{"temp"}}},
			Properties: []*dmipb.DeviceProperty{{
				Name: "temp", Desired: &dmipb.TwinProperty{Value: "20", Metadata: map[string]string{"unit": "C", "type": "int"}},
				Visitors: &dmipb.VisitorConfig{ProtocolName: "modbus", ConfigData: &dmipb.CustomizedValue{Data: map[string]*anypb.Any{
					"register": wrap(t, wrapperspb.String("Coil")), "offset": wrap(t, wrapperspb.Float(2)),
				}}},
				ReportCycle: 5, CollectCycle: 6, ReportToCloud: true,
				PushMethod: &dmipb.PushMethod{
					Http: &dmipb.PushMethodHTTP{Hostname: "http://h", Port: 80, Requestpath: "/p", Timeout: 7},
					Mqtt: &dmipb.PushMethodMQTT{Address: "tcp://h", Topic: "t", Qos: 1, Retained: true},
					Otel: &dmipb.PushMethodOTEL{EndpointURL: "http://o"},
					DbMethod: &dmipb.DBMethod{
						Influxdb2: &dmipb.DBMethodInfluxdb2{
							Influxdb2ClientConfig: &dmipb.Influxdb2ClientConfig{Url: "u", Org: "o", Bucket: "b"},
							Influxdb2DataConfig:   &dmipb.Influxdb2DataConfig{Measurement: "m", Tag: map[string]string{"a": "b"}, FieldKey: "f"},
						},
						Redis:    &dmipb.DBMethodRedis{RedisClientConfig: &dmipb.RedisClientConfig{Addr: "a", Db: 1, Poolsize: 2, MinIdleConns: 3}},
						Tdengine: &dmipb.DBMethodTDEngine{TdEngineClientConfig: &dmipb.TDEngineClientConfig{Addr: "a", Dbname: "n"}},
						Mysql:    &dmipb.DBMethodMySQL{MysqlClientConfig: &dmipb.MySQLClientConfig{Addr: "a", Database: "d", UserName: "u"}},
					},
					AnomalyDetection: &dmipb.AnomalyDetection{Data: map[string]*anypb.Any{"limit": wrap(t, wrapperspb.Float(3))}},
				},
			}},
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Device (-want +got):\n%s", diff)
	}
	if len(notes) > 0 {
		t.Errorf("notes: %v", notes)
	}
}

// TestDevice_Traps has what ends a mapper of KubeEdge's framework when it is sent as it stands.
func TestDevice_Traps(t *testing.T) {
	integer := devices.ModelProperty{Name: "p", Type: "INT", AccessMode: "ReadWrite", Minimum: "0", Maximum: "100"}
	for name, tt := range map[string]struct {
		device *devices.Device
		model  *devices.DeviceModel
		before map[string]string
		reason string
		check  func(d *dmipb.Device) bool
	}{
		"no protocol, no status": {
			device: &devices.Device{}, model: modelOf(),
			check: func(d *dmipb.Device) bool {
				return d.Spec.Protocol.ConfigData != nil && d.Status != nil && d.Spec.DeviceModelReference == ""
			},
		},
		"no desired value, no visitors": {
			device: deviceOf(devices.DeviceProperty{Name: "p"}), model: modelOf(integer),
			check: func(d *dmipb.Device) bool {
				p := d.Spec.Properties[0]
				return p.Desired != nil && p.Desired.Metadata["type"] == "int" && p.Visitors.ConfigData != nil && p.PushMethod == nil
			},
		},
		"a property that the model lacks": {
			device: deviceOf(devices.DeviceProperty{Name: "other"}, devices.DeviceProperty{Name: "p"}), model: modelOf(integer),
			reason: message.ReasonPropertiesUnknown,
			check:  func(d *dmipb.Device) bool { return len(d.Spec.Properties) == 1 && d.Spec.Properties[0].Name == "p" },
		},
		"a desired value out of range": {
			device: deviceOf(devices.DeviceProperty{Name: "p", Desired: &devices.TwinProperty{Value: "101"}}), model: modelOf(integer),
			before: map[string]string{"p": "50"}, reason: message.ReasonDesiredRefused,
			check: func(d *dmipb.Device) bool { return d.Spec.Properties[0].Desired.Value == "50" },
		},
		"a desired value of the wrong type": {
			device: deviceOf(devices.DeviceProperty{Name: "p", Desired: &devices.TwinProperty{Value: "x"}}), model: modelOf(integer),
			reason: message.ReasonDesiredRefused,
			check:  func(d *dmipb.Device) bool { return d.Spec.Properties[0].Desired.Value == "" },
		},
		"nested configData": {
			device: withConfig(`{"tcp":{"port":502},"list":[1]}`), model: modelOf(), reason: message.ReasonConfigNested,
			check: func(d *dmipb.Device) bool {
				return stringOf(d, "tcp") == `{"port":502}` && stringOf(d, "list") == "[1]"
			},
		},
		"null in configData": {
			device: withConfig(`{"a":null,"b":"x"}`), model: modelOf(), reason: message.ReasonConfigInvalid,
			check: func(d *dmipb.Device) bool {
				return len(d.Spec.Protocol.ConfigData.Data) == 1 && stringOf(d, "b") == "x"
			},
		},
		"configData that is a list": {
			device: withConfig(`[1]`), model: modelOf(), reason: message.ReasonConfigInvalid,
			check: func(d *dmipb.Device) bool { return d.Spec.Protocol.ConfigData != nil },
		},
		"a key named data": {
			device: withConfig(`{"data":"x"}`), model: modelOf(),
			check: func(d *dmipb.Device) bool { return stringOf(d, "data") == "x" },
		},
		"an empty database": {
			device: deviceOf(devices.DeviceProperty{Name: "p", PushMethod: &devices.PushMethod{DBMethod: &devices.DBMethodConfig{
				Influxdb2: &devices.DBMethodInfluxdb2{}, Redis: &devices.DBMethodRedis{ClientConfig: &devices.RedisClientConfig{PoolSize: 1 << 40}},
			}}}), model: modelOf(integer),
			check: func(d *dmipb.Device) bool {
				db := d.Spec.Properties[0].PushMethod.DbMethod
				return db.Influxdb2.Influxdb2ClientConfig != nil && db.Redis.RedisClientConfig.Poolsize == 1<<31-1
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, notes := message.Device(tt.device, tt.model, tt.before)
			if !tt.check(got) {
				t.Errorf("got %v", got)
			}
			found := tt.reason == "" && len(notes) == 0
			for _, n := range notes {
				found = found || n.Reason == tt.reason
			}
			if !found {
				t.Errorf("notes %v, want reason %q", notes, tt.reason)
			}
		})
	}
}

func withConfig(json string) *devices.Device {
	d := deviceOf()
	d.Spec.Protocol.ConfigData = raw(json)
	return d
}

// stringOf returns a text of the protocol's configData.
func stringOf(d *dmipb.Device, key string) string {
	var s wrapperspb.StringValue
	if err := d.Spec.Protocol.ConfigData.Data[key].UnmarshalTo(&s); err != nil {
		return err.Error()
	}
	return s.GetValue()
}

// TestDevice_Numbers: integers stay what they are, and others are what KubeEdge sends.
func TestDevice_Numbers(t *testing.T) {
	for text, want := range map[string]proto.Message{
		"9600": wrapperspb.Float(9600), "16777216": wrapperspb.Float(1 << 24), "16777217": wrapperspb.Int64(1<<24 + 1), "-16777217": wrapperspb.Int64(-1<<24 - 1),
		"0.5": wrapperspb.Float(0.5), "1e300": wrapperspb.Float(3.4028234663852886e38), "99999999999999999999": wrapperspb.Float(1e20),
	} {
		got, _ := message.Device(withConfig(`{"n":`+text+`}`), modelOf(), nil)
		if diff := cmp.Diff(wrap(t, want), got.Spec.Protocol.ConfigData.Data["n"], protocmp.Transform()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

// TestDevice_ModelDefaults: the model's visitors replace the device's, whose keys win one by one.
func TestDevice_ModelDefaults(t *testing.T) {
	device := deviceOf(devices.DeviceProperty{Name: "p", Visitors: devices.ProtocolConfig{ProtocolName: "device", ConfigData: raw(`{"a":"device"}`)}})
	device.Spec.Protocol.ConfigData = raw(`{"a":"device"}`)
	model := modelOf(devices.ModelProperty{
		Name: "p", Type: "STRING", Visitors: &devices.ProtocolConfig{ProtocolName: "model", ConfigData: raw(`{"a":"model","b":"model"}`)},
	})
	model.Spec.ProtocolConfigData = raw(`{"a":"model","b":"model"}`)
	got, notes := message.Device(device, model, nil)
	merged := map[string]*anypb.Any{"a": wrap(t, wrapperspb.String("device")), "b": wrap(t, wrapperspb.String("model"))}
	if diff := cmp.Diff(merged, got.Spec.Protocol.ConfigData.Data, protocmp.Transform()); diff != "" || got.Spec.Protocol.ProtocolName != "modbus" {
		t.Errorf("protocol %s (-want +got):\n%s", got.Spec.Protocol.ProtocolName, diff)
	}
	visitors := got.Spec.Properties[0].Visitors
	if diff := cmp.Diff(merged, visitors.ConfigData.Data, protocmp.Transform()); diff != "" || visitors.ProtocolName != "model" {
		t.Errorf("visitors %s (-want +got):\n%s", visitors.ProtocolName, diff)
	}
	if len(notes) > 0 {
		t.Errorf("notes: %v", notes)
	}
}

// TestModel converts a DeviceModel with each field.
func TestModel(t *testing.T) {
	got := message.Model(modelOf(devices.ModelProperty{
		Name: "p", Description: "d", Type: "INT", AccessMode: "ReadOnly", Minimum: "1", Maximum: "2", Unit: "C",
	}))
	want := &dmipb.DeviceModel{Name: "m", Namespace: "default", Spec: &dmipb.DeviceModelSpec{Properties: []*dmipb.ModelProperty{{
		Name: "p", Description: "d", Type: "INT", AccessMode: "ReadOnly", Minimum: "1", Maximum: "2", Unit: "C",
	}}}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("Model (-want +got):\n%s", diff)
	}
}
