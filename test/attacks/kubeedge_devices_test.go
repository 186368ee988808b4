package attacks_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// The API paths of KubeEdge's kinds of devices.
const (
	devicesPath  = "/apis/devices.kubeedge.io/v1beta1/namespaces/default/devices"
	modelsPath   = "/apis/devices.kubeedge.io/v1beta1/namespaces/default/devicemodels"
	statusesPath = "/apis/devices.kubeedge.io/v1beta1/namespaces/default/devicestatuses"
)

const foreignDevices = `
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceModel
metadata: {name: of-NODE, namespace: default}
spec: {protocol: modbus}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: Device
metadata: {name: of-NODE, namespace: default}
spec: {nodeName: NODE, deviceModelRef: {name: of-NODE}, properties: [{name: valve, desired: {value: closed}}]}
---
apiVersion: devices.kubeedge.io/v1beta1
kind: DeviceStatus
metadata: {name: of-NODE, namespace: default}
status: {state: ok}
`

// createKubeEdgeDevices creates a device with its model and status for the victim and for the stolen node, and removes them with the
// test. It waits until both gateways have theirs.
func createKubeEdgeDevices(t *testing.T) {
	t.Helper()
	for _, node := range []string{victim, stolen} {
		manifest := strings.ReplaceAll(foreignDevices, "NODE", node)
		if _, err := shared.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := shared.Kubectl(context.WithoutCancel(t.Context()), manifest, "delete", "--ignore-not-found", "-f", "-"); err != nil {
				t.Log(err) // the cluster ends with the tests
			}
		})
	}
	eventually(t, "the victim has its device", func(ctx context.Context) string {
		if got := victimDevice(ctx); got != "closed" {
			return got
		}
		return ""
	})
	for _, node := range []string{victim, stolen} { // cloudcore writes that once, and no attacker
		if _, err := shared.Kubectl(t.Context(), "", "wait", "device/of-"+node, "--for=jsonpath={.metadata.annotations.frond\\.io/device-holder}="+node, "--timeout=60s"); err != nil {
			t.Fatal(err)
		}
	}
}

// victimDevice returns the desired value of the victim's device as its gateway holds it.
func victimDevice(ctx context.Context) string {
	raw, err := shared.StoreGet(ctx, victim, wire.Key{Group: devices.Group, Resource: devices.DevicesResource, Namespace: "default", Name: "of-" + victim})
	if err != nil {
		return err.Error()
	}
	var device devices.Device
	if err := json.Unmarshal(raw, &device); err != nil {
		return err.Error()
	}
	return device.Spec.Properties[0].Desired.Value
}

// kubeEdgeObjects returns all objects of the kinds of devices, with their versions, as Kubernetes has them.
func kubeEdgeObjects(t *testing.T) string {
	t.Helper()
	text, err := shared.Kubectl(t.Context(), "", "get", "devices,devicemodels,devicestatuses", "-A",
		"-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestKubeEdgeDevices_ForeignAreRefused: as the stolen node, an attacker reads no device by a request or a scope, not even its own,
// which its gateway holds, and writes none by a request or a report.
func TestKubeEdgeDevices_ForeignAreRefused(t *testing.T) {
	createKubeEdgeDevices(t)
	before := kubeEdgeObjects(t)
	if strings.Count(before, "\n") < 6 {
		t.Fatalf("the objects are %s", before)
	}
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	if r := th.requestKube(t, wire.KubeRequest{Method: http.MethodGet, Path: "/api/v1/namespaces/default/secrets/of-" + stolen}); r.Code != http.StatusOK {
		t.Fatalf("the stolen node's own secret: %d %s %s", r.Code, r.Error, r.Body) // the control: otherwise the rest proves nothing
	}
	checkUnharmed(t, func() {
		for name, r := range deviceRequests() {
			if r := th.requestKube(t, r); r.Code != http.StatusForbidden {
				t.Errorf("%s: %d %s %.300s", name, r.Code, r.Error, r.Body)
			}
		}
		th.requestDeviceScope(t)
		th.reportDevices(t)
		th.reportVictimsDevice(t)
		th.sendVictimsSamples(t)
		th.sendVictimsMessages(t)
	})
	if after := kubeEdgeObjects(t); after != before {
		t.Errorf("the objects were\n%sand are\n%s", before, after)
	}
	if got := victimDevice(t.Context()); got != "closed" {
		t.Errorf("the victim's device is %s", got)
	}
}

// deviceRequests returns Kubernetes requests that a node may not make.
func deviceRequests() map[string]wire.KubeRequest {
	const merge, plain = "application/merge-patch+json", "application/json"
	opened := []byte(`{"spec":{"properties":[{"name":"valve","desired":{"value":"open"}}]}}`)
	return map[string]wire.KubeRequest{
		"another's device":                 {Method: http.MethodGet, Path: devicesPath + "/of-" + victim},
		"another's device, in the old way": {Method: http.MethodGet, Path: strings.Replace(devicesPath, "v1beta1", "v1alpha2", 1) + "/of-" + victim},
		"another's model":                  {Method: http.MethodGet, Path: modelsPath + "/of-" + victim},
		"another's status":                 {Method: http.MethodGet, Path: statusesPath + "/of-" + victim},
		"all devices":                      {Method: http.MethodGet, Path: "/apis/devices.kubeedge.io/v1beta1/devices"},
		"devices of another":               {Method: http.MethodGet, Path: devicesPath, Query: ofVictim},
		"its own devices":                  {Method: http.MethodGet, Path: devicesPath, Query: "fieldSelector=spec.nodeName%3D" + stolen},
		"another's valve":                  {Method: http.MethodPatch, Path: devicesPath + "/of-" + victim, ContentType: merge, Body: opened},
		"its own valve":                    {Method: http.MethodPatch, Path: devicesPath + "/of-" + stolen, ContentType: merge, Body: opened},
		"another's device as its own":      {Method: http.MethodPatch, Path: devicesPath + "/of-" + victim, ContentType: merge, Body: []byte(`{"spec":{"nodeName":"` + stolen + `"}}`)},
		"a device for another":             {Method: http.MethodPost, Path: devicesPath, ContentType: plain, Body: []byte(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"thief"},"spec":{"nodeName":"` + victim + `"}}`)},
		"a device that refers to a model":  {Method: http.MethodPost, Path: devicesPath, ContentType: plain, Body: []byte(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":"thief"},"spec":{"nodeName":"` + stolen + `","deviceModelRef":{"name":"of-` + victim + `"}}}`)},
		"a model":                          {Method: http.MethodPost, Path: modelsPath, ContentType: plain, Body: []byte(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"DeviceModel","metadata":{"name":"thief"}}`)},
		"another's model as it likes":      {Method: http.MethodPatch, Path: modelsPath + "/of-" + victim, ContentType: merge, Body: []byte(`{"spec":{"protocol":"x"}}`)},
		"another's status as it likes":     {Method: http.MethodPatch, Path: statusesPath + "/of-" + victim, ContentType: merge, Body: []byte(`{"status":{"state":"offline"}}`)},
		"its own status":                   {Method: http.MethodPatch, Path: statusesPath + "/of-" + stolen, ContentType: merge, Body: []byte(`{"status":{"state":"offline"}}`)},
		"an end of another's device":       {Method: http.MethodDelete, Path: devicesPath + "/of-" + victim},
		"an end of all devices":            {Method: http.MethodDelete, Path: devicesPath},
		"an end of another's model":        {Method: http.MethodDelete, Path: modelsPath + "/of-" + victim},
	}
}

// requestDeviceScope requests all devices and models for an account of the stolen node that has no right to them.
func (th *attacker) requestDeviceScope(t *testing.T) {
	t.Helper()
	request := wire.ScopesRequest{Order: uint64(time.Now().UnixNano())}
	for _, resource := range []string{devices.DevicesResource, devices.DeviceModelsResource} {
		scope := wire.Scope{Group: devices.Group, Version: devices.Version, Resource: resource}
		request.Wants = append(request.Wants, wire.ScopeWant{Scope: scope, Users: []string{"system:serviceaccount:default:of-" + stolen}})
	}
	var reply wire.ScopesReply
	if err := json.Unmarshal(th.callCloud(t, subject.VerbScopes, encodeJSON(t, request)), &reply); err != nil || len(reply.Verdicts) != 2 {
		t.Fatalf("scopes: %v %+v", err, reply)
	}
	for _, verdict := range reply.Verdicts {
		if verdict.Reason != wire.ScopeForbidden {
			t.Errorf("scope %s: %q %s", verdict.Scope, verdict.Reason, verdict.Message)
		}
	}
}

// reportVictimsDevice reports a status of the victim's device, with the right UID, and one of the stolen node's own with a wrong one.
func (th *attacker) reportVictimsDevice(t *testing.T) {
	t.Helper()
	uid, err := shared.Kubectl(t.Context(), "", "get", "device", "of-"+victim, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		t.Fatal(err)
	}
	risen := counterDelta(t, "frond_devicestatus_dropped_total")
	for _, name := range []string{"of-" + victim, "of-" + stolen} {
		key := wire.Key{Group: devices.Group, Resource: devices.DeviceStatusesResource, Namespace: "default", Name: name}
		body := `{"metadata":{"name":"` + name + `","namespace":"default"},"status":{"state":"offline"}}`
		th.publish(subject.Of(subject.Report, stolen, key), "", []byte(body), "Frond-Version: 1", "Frond-Op: apply", "Frond-UID: "+uid,
			"Frond-Store: thief", "Frond-Order: 2", "Frond-Time: "+time.Now().UTC().Format(time.RFC3339Nano))
	}
	if said := th.flush(t.Context()); said != "" {
		t.Fatal(said)
	}
	awaitCounter(t, "reports of foreign devices are dropped", risen, 2)
}

// sendVictimsSamples sends samples of the victim's device, of no device and garbage. None is among the samples of the hub.
func (th *attacker) sendVictimsSamples(t *testing.T) {
	t.Helper()
	samples := hubStream(t, subject.TelemetryStream)
	before := samples.CachedInfo().State.LastSeq
	line := `{"n":NUMBER,"s":"default","d":"of-` + victim + `","p":"valve","v":"open","g":1}` + "\n"
	risen, dead := counterDelta(t, "frond_telemetry_samples_total", "result=foreign"), counterDelta(t, "frond_dead_letters_total")
	run := newRun()
	request := func(lines string) []byte { return compressedRequest(t, run, lines) }
	for name, body := range map[string][]byte{
		"another's device": request(strings.ReplaceAll(line, "NUMBER", "1")),
		"no device":        request(strings.ReplaceAll(strings.ReplaceAll(line, "NUMBER", "2"), "of-"+victim, "thief")),
		"a wildcard":       request(strings.ReplaceAll(strings.ReplaceAll(line, "NUMBER", "3"), "of-"+victim, ">")),
		"a bomb":           append(run.head(), zstdBomb(t)...),
		"garbage":          append(run.head(), "thief"...),
	} {
		var reply struct{ Error string }
		if err := json.Unmarshal(th.callCloud(t, subject.VerbTelemetry, body), &reply); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if wrong := name != "another's device" && name != "no device"; wrong != (reply.Error != "") {
			t.Errorf("%s: the answer is %q", name, reply.Error)
		}
	}
	awaitCounter(t, "foreign samples", risen, 2)
	awaitCounter(t, "dead letters", dead, 5)
	if stored := storedAfter(t, samples, before); len(stored) != 0 {
		t.Errorf("these samples are in the hub: %v", stored)
	}
}

// hubStream returns a stream of the hub, read as its administrator.
func hubStream(t *testing.T, name string) jetstream.Stream {
	t.Helper()
	admin, err := natscontext.NewFromFile(shared.NATSContext())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := admin.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// storedAfter returns the subjects of the messages of a stream after a position.
func storedAfter(t *testing.T, stream jetstream.Stream, after uint64) (subjects []string) {
	t.Helper()
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq := after + 1; seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		subjects = append(subjects, m.Subject)
	}
	return subjects
}

// senderRun is a run of a sender of samples or messages: the hub ignores a number that it has from the run.
type senderRun string

func newRun() senderRun { return senderRun("thief-" + rand.Text()) }

// head returns the first line of a request.
func (r senderRun) head() []byte { return fmt.Appendf(nil, "{\"run\":%q}\n", string(r)) }

// compressedRequest is a request with samples or messages.
func compressedRequest(t *testing.T, run senderRun, lines string) []byte {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = encoder.Close() }()
	return append(run.head(), encoder.EncodeAll([]byte(lines), nil)...)
}

// sendVictimsMessages sends messages that name the victim in each place that the thief fills. All are stored below the thief's name, or refused.
func (th *attacker) sendVictimsMessages(t *testing.T) {
	t.Helper()
	messages := hubStream(t, subject.MessagesStream)
	before, number, run := messages.CachedInfo().State.LastSeq, 0, newRun()
	for topic, refused := range map[string]bool{
		victim + "/user/x": false, "../" + victim + "/user/x": false, "." + victim + ".user.x": false, "*/user/x": false, ">": false, "$JS/user/API": false,
		"a/#": true, "": true, "a\\r\\nPUB messages." + victim + ".x 0\\r\\n": true,
	} {
		number++
		line := fmt.Sprintf(`{"n":%d,"m":"%s","f":"internal","u":"%s","g":1,"b":"eA=="}`+"\n", number, topic, victim)
		var reply struct{ Error string }
		if err := json.Unmarshal(th.callCloud(t, subject.VerbMessages, compressedRequest(t, run, line)), &reply); err != nil {
			t.Errorf("%q: %v", topic, err)
		}
		if refused != (reply.Error != "") {
			t.Errorf("%q: the answer is %q", topic, reply.Error)
		}
	}
	for name, body := range map[string][]byte{"a bomb": append(run.head(), zstdBomb(t)...), "garbage": append(run.head(), "thief"...)} {
		var reply struct{ Error string }
		if err := json.Unmarshal(th.callCloud(t, subject.VerbMessages, body), &reply); err != nil || reply.Error == "" {
			t.Errorf("%s: the answer is %q, %v", name, reply.Error, err)
		}
	}
	stored := storedAfter(t, messages, before)
	for _, name := range stored {
		if !strings.HasPrefix(name, "messages."+stolen+".") {
			t.Errorf("a message of the thief is below %s", name)
		}
	}
	if len(stored) != 6 {
		t.Errorf("messages below %v", stored)
	}
}

// reportDevices reports objects of the kinds of devices as the stolen node's own. None is accepted: the last report of each object, at
// least, ends as a dead letter.
func (th *attacker) reportDevices(t *testing.T) {
	t.Helper()
	risen, sent := counterDelta(t, "frond_dead_letters_total"), 0.0
	for _, resource := range []string{devices.DevicesResource, devices.DeviceModelsResource, devices.DeviceStatusesResource} {
		for _, name := range []string{"of-" + victim, "of-" + stolen, "thief"} {
			for _, op := range []string{"apply", "delete"} {
				key := wire.Key{Group: devices.Group, Resource: resource, Namespace: "default", Name: name}
				body := `{"apiVersion":"devices.kubeedge.io/v1beta1","metadata":{"name":"` + name + `","namespace":"default"},"spec":{"nodeName":"` + stolen + `"},"status":{"state":"offline"}}`
				th.publish(subject.Of(subject.Report, stolen, key), "", []byte(body), "Frond-Version: 1", "Frond-Op: "+op, "Frond-UID: u",
					"Frond-Store: thief", "Frond-Order: 1", "Frond-Time: "+time.Now().UTC().Format(time.RFC3339Nano))
			}
			sent++
		}
	}
	if said := th.flush(t.Context()); said != "" {
		t.Fatal(said)
	}
	awaitCounter(t, "reports of devices are dead letters", risen, sent)
}
