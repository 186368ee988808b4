package crd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// recordedWarnings records the warnings of an apiserver.
type recordedWarnings struct {
	mu   sync.Mutex
	text []string // guarded by mu
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (r *recordedWarnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = append(r.text, text)
}

func (r *recordedWarnings) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.text)
}

// deviceAPI is an apiserver with the definitions of the device kinds, and a namespace of a test's own.
type deviceAPI struct {
	*testing.T
	config    *rest.Config
	client    dynamic.Interface
	namespace string
	warnings  recordedWarnings
}

func newDeviceAPI(t *testing.T) *deviceAPI {
	t.Helper()
	cluster := shared.Cluster(t)
	a := &deviceAPI{T: t, config: cluster.Config(), namespace: cluster.Namespace(t)}
	a.config.WarningHandlerWithContext = &a.warnings
	var err error
	if a.client, err = dynamic.NewForConfig(a.config); err != nil {
		t.Fatal(err)
	}
	definitions, err := crd.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range definitions {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &o.Object); err != nil {
			t.Fatal(err)
		}
		if _, err := a.client.Resource(definitionResource()).Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	for _, name := range []string{devices.DevicesResource, devices.DeviceModelsResource, devices.DeviceStatusesResource} {
		kubetest.Eventually(t, time.Minute, func() error {
			_, err := a.client.Resource(devices.GroupVersion().WithResource(name)).List(t.Context(), metav1.ListOptions{})
			return err
		})
	}
	return a
}

func definitionResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

// resourceOf returns the client of an object's resource.
func (a *deviceAPI) resourceOf(o *unstructured.Unstructured) dynamic.ResourceInterface {
	a.Helper()
	resource, ok := map[string]string{
		devices.DeviceKind: devices.DevicesResource, devices.DeviceModelKind: devices.DeviceModelsResource, devices.DeviceStatusKind: devices.DeviceStatusesResource,
	}[o.GetKind()]
	if !ok {
		a.Fatalf("no kind of devices: %s", o.GetKind())
	}
	return a.client.Resource(o.GroupVersionKind().GroupVersion().WithResource(resource)).Namespace(a.namespace)
}

// create creates an object. The apiserver refuses fields that its schema lacks.
func (a *deviceAPI) create(o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	a.Helper()
	return a.resourceOf(o).Create(a.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
}

// decodeManifests decodes the documents of a YAML text.
func decodeManifests(t *testing.T, text []byte) (all []*unstructured.Unstructured) {
	t.Helper()
	for decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
}

func acceptedManifests(t *testing.T) (all []*unstructured.Unstructured) {
	t.Helper()
	files, err := filepath.Glob("testdata/accepted/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, decodeManifests(t, text)...)
	}
	return all
}

// contentOf returns what a user writes of an object, as JSON.
func contentOf(t *testing.T, o map[string]any) string {
	t.Helper()
	data, err := json.MarshalIndent(map[string]any{"spec": o["spec"], "status": o["status"]}, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestDevices_ManifestsOfKubeEdgeAreKept: the apiserver takes what users of KubeEdge have, and returns each field.
func TestDevices_ManifestsOfKubeEdgeAreKept(t *testing.T) {
	a := newDeviceAPI(t)
	for _, o := range acceptedManifests(t) {
		name := o.GetKind() + " " + o.GetName()
		want := contentOf(t, o.Object)
		if _, err := a.create(o); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := a.resourceOf(o).Get(t.Context(), o.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, contentOf(t, got.Object)); diff != "" {
			t.Errorf("%s (-written +read):\n%s", name, diff)
		}
	}
	if warnings := a.warnings.all(); len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
}

// TestDevices_TypesHaveEachField: the Go types read the same manifests, and write each field again.
func TestDevices_TypesHaveEachField(t *testing.T) {
	for _, o := range acceptedManifests(t) {
		if !strings.HasPrefix(o.GetName(), "all-fields") {
			continue
		}
		into := map[string]any{devices.DeviceKind: &devices.Device{}, devices.DeviceModelKind: &devices.DeviceModel{}, devices.DeviceStatusKind: &devices.DeviceStatus{}}[o.GetKind()]
		if o.GetKind() == devices.DeviceKind { // these are only kept
			for _, field := range []string{"twins", "state", "lastOnlineTime"} {
				unstructured.RemoveNestedField(o.Object, "status", field)
			}
		}
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(data, into); err != nil {
			t.Errorf("%s: %v", o.GetKind(), err)
			continue
		}
		if data, err = json.Marshal(into); err != nil {
			t.Fatal(err)
		}
		var again map[string]any
		if err := json.Unmarshal(data, &again); err != nil {
			t.Fatal(err)
		}
		want := contentOf(t, o.Object)
		if o.GetKind() == devices.DeviceStatusKind { // an empty spec and no spec are the same
			want = strings.Replace(want, `"spec": {}`, `"spec": null`, 1)
		}
		got := contentOf(t, again)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-written +read):\n%s", o.GetKind(), diff)
		}
	}
}

// TestDevices_ImpossibleIsRefused: what can never work is refused, with a message that says why.
func TestDevices_ImpossibleIsRefused(t *testing.T) {
	a := newDeviceAPI(t)
	const device, model = devices.DeviceKind, devices.DeviceModelKind
	for name, tt := range map[string]struct{ kind, spec, want string }{
		"two properties of one name":         {device, `properties: [{name: a}, {name: b}, {name: a}]`, `spec.properties[2]: Duplicate value`},
		"two model properties of one name":   {model, `properties: [{name: a, type: INT}, {name: a, type: FLOAT}]`, `spec.properties[1]: Duplicate value`},
		"a property without a name":          {device, `properties: [{desired: {value: "1"}}]`, `the property has no name`},
		"a model property without a name":    {model, `properties: [{type: INT}]`, `the property has no name`},
		"a desired property without a value": {device, `properties: [{name: a, desired: {}}]`, `spec.properties[0].desired.value: Required value`},
		"a minimum above the maximum":        {model, `properties: [{name: a, type: INT, minimum: "10", maximum: "9"}]`, `spec.properties[0].minimum: Invalid value`},
		"a fraction above the maximum":       {model, `properties: [{name: a, type: DOUBLE, minimum: "-1.5", maximum: "-1.75"}]`, `minimum is greater than maximum`},
		"a name that no Node can have":       {device, `nodeName: Edge_Node`, `spec.nodeName: Invalid value: "Edge_Node": not a name that a Node can have`},
		"a name too long for a Node":         {device, `nodeName: ` + strings.Repeat("a", 254), `spec.nodeName: Too long`},
		"a QoS that MQTT lacks":              {device, `properties: [{name: a, pushMethod: {mqtt: {qos: 3}}}]`, `mqtt.qos`},
		"a port above all ports":             {device, `properties: [{name: a, pushMethod: {http: {port: 65536}}}]`, `http.port`},
		"a cycle below zero":                 {device, `properties: [{name: a, collectCycle: -1}]`, `collectCycle`},
		"an unknown type":                    {model, `properties: [{name: a, type: int}]`, `Unsupported value: "int"`},
		"an unknown access mode":             {model, `properties: [{name: a, accessMode: WriteOnly}]`, `Unsupported value: "WriteOnly"`},
		"configuration that is no object":    {device, `protocol: {configData: text}`, `spec.protocol.configData`},
		"a misspelled field":                 {device, `properties: [{name: a, pushMethod: {dbMethod: {tdengine: {}}}}]`, `unknown field "spec.properties[0].pushMethod.dbMethod.tdengine"`},
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprintf("apiVersion: devices.kubeedge.io/v1beta1\nkind: %s\nmetadata: {generateName: bad-}\nspec:\n  %s\n", tt.kind, tt.spec)
			_, err := a.create(decodeManifests(t, []byte(text))[0])
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestDevices_OldVersionIsTakenWithWarning: manifests of v1alpha2 are taken as KubeEdge takes them, and the client is warned.
func TestDevices_OldVersionIsTakenWithWarning(t *testing.T) {
	a := newDeviceAPI(t)
	for _, o := range decodeManifests(t, []byte(`
apiVersion: devices.kubeedge.io/v1alpha2
kind: Device
metadata: {name: old}
spec:
  deviceModelRef: {name: old}
  nodeSelector: {nodeSelectorTerms: [{matchExpressions: [{key: "", operator: In, values: [edge-node]}]}]}
  protocol: {modbus: {slaveID: 1}, common: {com: {serialPort: "1", baudRate: 115200}}}
  propertyVisitors: [{propertyName: temperature, modbus: {register: HoldingRegister, offset: 2}}]
status: {twins: [{propertyName: temperature, desired: {value: "1", metadata: {type: int}}}]}
---
apiVersion: devices.kubeedge.io/v1alpha2
kind: DeviceModel
metadata: {name: old}
spec: {properties: [{name: temperature, type: {int: {accessMode: ReadWrite, maximum: 100, unit: celsius}}}]}
`)) {
		before := len(a.warnings.all())
		if _, err := a.create(o); err != nil {
			t.Errorf("%s: %v", o.GetKind(), err)
		}
		warnings := a.warnings.all()[before:]
		if len(warnings) != 1 || !strings.Contains(warnings[0], "Frond does not understand this version") {
			t.Errorf("%s: warnings %q", o.GetKind(), warnings)
		}
		o.SetGroupVersionKind(devices.GroupVersion().WithKind(o.GetKind()))
		read, err := a.resourceOf(o).Get(t.Context(), o.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, kept, _ := unstructured.NestedFieldNoCopy(read.Object, "spec", "propertyVisitors"); kept || nodeOf(read) != "" {
			t.Errorf("%s: read as v1beta1 it has fields of v1alpha2: %s", o.GetKind(), contentOf(t, read.Object))
		}
		if _, err := a.resourceOf(o).Patch(t.Context(), o.GetName(), types.MergePatchType, []byte(`{"metadata":{"labels":{"seen":"yes"}}}`), metav1.PatchOptions{}); err != nil {
			t.Errorf("a label of the %s: %v", o.GetKind(), err)
		}
	}
}

// nodeOf returns the node that a Device names.
func nodeOf(o *unstructured.Unstructured) string {
	node, _, _ := unstructured.NestedString(o.Object, "spec", "nodeName")
	return node
}

// TestDevices_TablesAndSelectors: kubectl get prints what operators look for, and devices can be selected by their node.
func TestDevices_TablesAndSelectors(t *testing.T) {
	a := newDeviceAPI(t)
	for _, o := range acceptedManifests(t) {
		if o.GetName() == "all-fields" || o.GetName() == "no-protocol" {
			if _, err := a.create(o); err != nil {
				t.Fatal(err)
			}
		}
	}
	list, err := a.client.Resource(devices.GroupVersion().WithResource(devices.DevicesResource)).Namespace(a.namespace).
		List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=worker-node1"})
	if err != nil || len(list.Items) != 1 || list.Items[0].GetName() != "all-fields" {
		t.Errorf("devices of a node: %v %v", list, err)
	}
	for resource, want := range map[string]string{
		devices.DevicesResource:        "Name Model Node Age: all-fields all-fields worker-node1",
		devices.DeviceModelsResource:   "Name Protocol Age: all-fields modbus",
		devices.DeviceStatusesResource: "Name State Last Age: all-fields ok",
	} {
		if got := a.printTable(resource); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", resource, got, want)
		}
	}
}

// printTable returns the headings of a table, and the cells of the first row.
func (a *deviceAPI) printTable(resource string) string {
	a.Helper()
	client, err := rest.HTTPClientFor(a.config)
	if err != nil {
		a.Fatal(err)
	}
	url := fmt.Sprintf("%s/apis/%s/namespaces/%s/%s", a.config.Host, devices.GroupVersion(), a.namespace, resource)
	req, err := http.NewRequestWithContext(a.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		a.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	answer, err := client.Do(req)
	if err != nil {
		a.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var table metav1.Table
	if err := json.NewDecoder(answer.Body).Decode(&table); err != nil {
		a.Fatal(err)
	}
	var headings []string
	for _, c := range table.ColumnDefinitions {
		headings = append(headings, c.Name)
	}
	if len(table.Rows) == 0 {
		return strings.Join(headings, " ")
	}
	return strings.Join(headings, " ") + ": " + strings.Trim(fmt.Sprint(table.Rows[0].Cells), "[]")
}
