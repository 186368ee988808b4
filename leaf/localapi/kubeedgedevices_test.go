package localapi_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi"
)

func deviceKey(resource, name string) wire.Key {
	return wire.Key{Group: devices.Group, Resource: resource, Namespace: "default", Name: name}
}

// deliverDevice simulates the delivery of a Device with a value and of its model.
func (s *podGateway) deliverDevice(name, value string) {
	s.t.Helper()
	s.deliverRaw(deviceKey(devices.DeviceModelsResource, "lamp"), []byte(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"DeviceModel",
		"metadata":{"namespace":"default","name":"lamp","uid":"m1","creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"protocol":"modbus"}}`))
	s.deliverRaw(deviceKey(devices.DevicesResource, name), []byte(strings.NewReplacer("NAME", name, "VALUE", value, "NODE", gatewayNode).Replace(
		`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"namespace":"default","name":"NAME","uid":"d-NAME","resourceVersion":"7"},
		"spec":{"nodeName":"NODE","deviceModelRef":{"name":"lamp"},"properties":[{"name":"on","desired":{"value":"VALUE"}}],"ofLater":true}}`)))
}

// announceDevices simulates the cloud's announcement that it sends devices; "" says that the cluster has no such kind.
func (s *podGateway) announceDevices(version string) {
	s.t.Helper()
	var kinds []wire.DeliveredKind
	for _, resource := range []string{devices.DevicesResource, devices.DeviceModelsResource} {
		k := wire.DeliveredKind{Group: devices.Group, Resource: resource, Version: version}
		if version == "" {
			k.Absence = wire.KindNotServed
		}
		kinds = append(kinds, k)
	}
	s.deliverJSON(wire.DeliveredKindsKey(), wire.NewDeliveredKinds(kinds))
}

func devicesOf(t *testing.T, cfg *rest.Config, resource string) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(withoutRetries(cfg))
	if err != nil {
		t.Fatal(err)
	}
	return c.Resource(devices.GroupVersion().WithResource(resource)).Namespace("default")
}

func namesOf(list *unstructured.UnstructuredList) (names []string) {
	for i := range list.Items {
		names = append(names, list.Items[i].GetName())
	}
	return names
}

// desiredValue returns the desired value of a Device's first property.
func desiredValue(o *unstructured.Unstructured) string {
	properties, _, _ := unstructured.NestedSlice(o.Object, "spec", "properties")
	if len(properties) == 0 {
		return ""
	}
	value, _, _ := unstructured.NestedString(properties[0].(map[string]any), "desired", "value")
	return value
}

// TestServer_NodeReadsItsDevices: without a link the node reads its devices and models, with each field, once the cloud has announced
// that it sends them; then a device that it does not hold is none of its own.
func TestServer_NodeReadsItsDevices(t *testing.T) {
	s := newPodGateway(t, func(c *localapi.Config) { c.Online = func() bool { return false } })
	node := devicesOf(t, s.api.ClientConfig(), devices.DevicesResource)
	if _, err := node.List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("devices that the cloud has said nothing of: %v", err)
	}
	if _, err := node.Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("a device of which nothing is known: %v", err)
	}
	s.announceDevices("")
	if _, err := node.List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("devices in a cluster without the kind: %v", err)
	}
	s.announceDevices(devices.Version)
	s.deliverDevice("one", "yes")
	for range 2 { // the second list finds what the first has left in caches
		list, err := node.List(t.Context(), metav1.ListOptions{})
		if err != nil || !slices.Equal(namesOf(list), []string{"one"}) {
			t.Fatalf("devices: %v %v", list, err)
		}
		one := &list.Items[0]
		if later, _, _ := unstructured.NestedBool(one.Object, "spec", "ofLater"); !later || desiredValue(one) != "yes" || one.GetResourceVersion() == "7" {
			t.Errorf("the device is %v", one)
		}
	}
	var clients errgroup.Group
	for range 4 { // objects that are maps are never shared between answers: an encoder writes into them
		clients.Go(func() error {
			for range 25 {
				if _, err := node.List(t.Context(), metav1.ListOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := clients.Wait(); err != nil {
		t.Error(err)
	}
	model, err := devicesOf(t, s.api.ClientConfig(), devices.DeviceModelsResource).Get(t.Context(), "lamp", metav1.GetOptions{})
	if err != nil || model.GetUID() != "m1" {
		t.Errorf("the model is %v: %v", model, err)
	}
	if _, err := node.Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a device that is not of this node: %v", err)
	}
}

// TestServer_WatchOfDevices: a watch sees a device, its change and its end.
func TestServer_WatchOfDevices(t *testing.T) {
	s := newPodGateway(t)
	s.announceDevices(devices.Version)
	s.deliverDevice("one", "1")
	in, err := devicesOf(t, s.api.ClientConfig(), devices.DevicesResource).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Stop()
	next := func() (watch.EventType, string) {
		select {
		case e := <-in.ResultChan():
			o, ok := e.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("event %+v", e)
			}
			return e.Type, o.GetName() + "=" + desiredValue(o)
		case <-time.After(10 * time.Second):
			t.Fatal("no event")
		}
		return "", ""
	}
	check := func(want watch.EventType, object string) {
		t.Helper()
		if event, got := next(); event != want || got != object {
			t.Errorf("got %s %s, want %s %s", event, got, want, object)
		}
	}
	check(watch.Added, "one=1")
	s.deliverDevice("one", "2")
	check(watch.Modified, "one=2")
	s.deliverRaw(deviceKey(devices.DevicesResource, "one"), nil)
	check(watch.Deleted, "one=2")
}

// TestServer_ProgramReadsDevicesOfTheNode: without a link a program in a pod with the rights reads the devices of its own node and their
// models; of all devices nothing is known.
func TestServer_ProgramReadsDevicesOfTheNode(t *testing.T) {
	s := newPodGateway(t, func(c *localapi.Config) { c.Online = func() bool { return false } })
	s.announceDevices(devices.Version)
	s.deliverDevice("one", "yes")
	program := s.configFor(s.issuer.Token(podClaims()))
	list := func(selector string) (*unstructured.UnstructuredList, error) {
		return devicesOf(t, program, devices.DevicesResource).List(t.Context(), metav1.ListOptions{FieldSelector: selector})
	}
	mine := "spec.nodeName=" + gatewayNode
	if _, err := list(mine); !apierrors.IsForbidden(err) && !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without rights: %v", err)
	}
	s.bindRole("default", rbacv1.PolicyRule{
		Verbs: []string{"get", "list", "watch"}, APIGroups: []string{devices.Group}, Resources: []string{devices.DevicesResource, devices.DeviceModelsResource},
	})
	if got, err := list(mine); err != nil || !slices.Equal(namesOf(got), []string{"one"}) {
		t.Errorf("devices of the node: %v %v", got, err)
	}
	if got, err := list("spec.nodeName=another"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("devices of another node: %v %v", got, err)
	}
	if got, err := list(""); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("all devices: %v %v", got, err)
	}
	if one, err := devicesOf(t, program, devices.DevicesResource).Get(t.Context(), "one", metav1.GetOptions{}); err != nil || desiredValue(one) != "yes" {
		t.Errorf("the device: %v %v", one, err)
	}
	if model, err := devicesOf(t, program, devices.DeviceModelsResource).Get(t.Context(), "lamp", metav1.GetOptions{}); err != nil || model.GetUID() != "m1" {
		t.Errorf("the model: %v %v", model, err)
	}
}

// TestServer_TablesOfDevices: kubectl get on a gateway prints the columns of the apiserver.
func TestServer_TablesOfDevices(t *testing.T) {
	s := newPodGateway(t)
	s.announceDevices(devices.Version)
	s.deliverDevice("one", "yes")
	for resource, want := range map[string]string{
		devices.DevicesResource:      "Name Model Node Age: one lamp " + gatewayNode + " <unknown>",
		devices.DeviceModelsResource: "Name Protocol Age: lamp modbus ",
	} {
		if got := s.printTable(resource); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", resource, got, want)
		}
	}
}

// printTable returns the headings of a table, and the cells of the first row.
func (s *podGateway) printTable(resource string) string {
	s.t.Helper()
	cfg := s.api.ClientConfig()
	client := clientFor(s.t, cfg).CoreV1().RESTClient()
	var table metav1.Table
	path := "/apis/" + devices.GroupVersion().String() + "/namespaces/default/" + resource
	raw, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &table); err != nil {
		s.t.Fatal(err)
	}
	var headings []string
	for _, c := range table.ColumnDefinitions {
		headings = append(headings, c.Name)
	}
	var cells []string
	for _, cell := range table.Rows[0].Cells {
		cells = append(cells, cell.(string))
	}
	return strings.Join(headings, " ") + ": " + strings.Join(cells, " ")
}
