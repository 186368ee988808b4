package devicewarnings_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/controllers/devicewarnings"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// owner owns all nodes but those whose names begin with another, and these once adopted is set.
type owner struct{ adopted *atomic.Bool }

func (o owner) Owns(node string) bool {
	return !strings.HasPrefix(node, "another") || o.adopted != nil && o.adopted.Load()
}
func (owner) Term(string) uint64       { return 1 }
func (owner) Changed() <-chan struct{} { return nil }
func (owner) LeaseValid() bool         { return true }

// env is an apiserver with the kinds of devices, on which a Recorder runs with cloudcore's rights.
type env struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   dynamic.Interface
	ns      string
	adopted atomic.Bool // makes the Recorder own all nodes
	// other is a second Recorder on the same caches, which only scans when it is told to.
	other *devicewarnings.Recorder
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, cluster: shared.Cluster(t)}
	e.ns = e.cluster.Namespace(t)
	var err error
	e.admin, err = dynamic.NewForConfig(e.cluster.Config())
	kit.Must(t, err)
	e.createDefinitions()
	user := e.cluster.ConfigWithRules(t, "frond-devicewarnings-test", append(devicewarnings.Rules(),
		rbacv1.PolicyRule{APIGroups: []string{devices.Group}, Resources: []string{"*"}, Verbs: []string{"list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}}))
	var objects cache.Cache
	kubetest.Eventually(t, time.Minute, func() error { // the authorizer and the discovery are behind
		objects, err = cache.New(user, cache.Options{})
		return err
	})
	statuses, err := devicestatus.NewStatuses(user, false)
	kit.Must(t, err)
	kube, err := kubernetes.NewForConfig(user)
	kit.Must(t, err)
	recorder := devicewarnings.New(objects, statuses, kube, owner{&e.adopted}, prometheus.NewRegistry(), zaptest.NewLogger(t))
	e.other = devicewarnings.New(objects, statuses, kube, owner{&e.adopted}, prometheus.NewRegistry(), zaptest.NewLogger(t))
	recorder.SetScanInterval(50 * time.Millisecond)
	for _, start := range []func(context.Context) error{objects.Start, statuses.Start, recorder.Start} {
		streamstest.StartPart(t, start)
	}
	return e
}

func (e *env) createDefinitions() {
	e.Helper()
	definitions, err := crd.Definitions()
	kit.Must(e, err)
	at := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, data := range definitions {
		o := &unstructured.Unstructured{}
		kit.Must(e, yaml.Unmarshal(data, &o.Object))
		if _, err := e.admin.Resource(at).Create(e.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			e.Fatal(err)
		}
	}
	for _, resource := range []string{devices.DevicesResource, devices.DeviceModelsResource, devices.DeviceStatusesResource} {
		kubetest.Eventually(e, time.Minute, func() error {
			_, err := e.admin.Resource(devices.GroupVersion().WithResource(resource)).List(e.Context(), metav1.ListOptions{})
			return err
		})
	}
}

func (e *env) create(resource, kind string, object map[string]any) *unstructured.Unstructured {
	e.Helper()
	object["apiVersion"], object["kind"] = devices.GroupVersion().String(), kind
	o, err := e.admin.Resource(devices.GroupVersion().WithResource(resource)).Namespace(e.ns).Create(e.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	kit.Must(e, err)
	return o
}

// createDevice creates a Device of a node, and the DeviceStatus in which that refuses a desired value.
func (e *env) createDevice(name, node, message string) *unstructured.Unstructured {
	e.Helper()
	device := e.create(devices.DevicesResource, devices.DeviceKind, map[string]any{
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"nodeName": node, "deviceModelRef": map[string]any{"name": "m"}},
	})
	e.create(devices.DeviceStatusesResource, devices.DeviceStatusKind, map[string]any{
		"metadata": map[string]any{"name": name, "ownerReferences": []any{map[string]any{
			"apiVersion": devices.GroupVersion().String(), "kind": devices.DeviceKind, "name": name, "uid": string(device.GetUID()),
		}}},
		"status": map[string]any{"state": "ok", "extensions": map[string]any{"frond": map[string]any{"conditions": []any{
			map[string]any{"type": devices.ConditionAccepted, "status": "False", "reason": "Refused", "message": message},
		}}}},
	})
	return device
}

func (e *env) createNode(name string) {
	e.Helper()
	nodes := e.cluster.Client(e).CoreV1().Nodes()
	_, err := nodes.Create(e.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	kit.Must(e, err)
	e.Cleanup(func() { kit.Must(e, nodes.Delete(context.WithoutCancel(e.Context()), name, metav1.DeleteOptions{})) })
	e.setConnected(name, corev1.ConditionTrue)
}

func (e *env) setConnected(name string, status corev1.ConditionStatus) {
	e.Helper()
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q}]}}`, names.ConditionConnected, status)
	_, err := e.cluster.Client(e).CoreV1().Nodes().Patch(e.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	kit.Must(e, err)
}

// awaitEvent waits for a warning about a device that contains a text, and returns it.
func (e *env) awaitEvent(device, reason, text string) (event corev1.Event) {
	e.Helper()
	kubetest.Eventually(e, time.Minute, func() error {
		list, err := e.cluster.Client(e).CoreV1().Events(e.ns).List(e.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, event = range list.Items {
			if event.InvolvedObject.Name == device && event.Reason == reason && strings.Contains(event.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("no %s about %s with %q among %d events", reason, device, text, len(list.Items))
	})
	return event
}

// A warning of the gateway becomes one Event about the Device, and only the owner of the node records it.
func TestRecorder_RecordsWarnings(t *testing.T) {
	e := newEnv(t)
	e.create(devices.DeviceModelsResource, devices.DeviceModelKind, map[string]any{"metadata": map[string]any{"name": "m"}})
	e.createNode("gw-" + e.ns)
	e.createNode("another-" + e.ns)
	e.createDevice("foreign", "another-"+e.ns, "property speed: too fast")
	device := e.createDevice("a", "gw-"+e.ns, "property temp: not within 1 and 5")
	event := e.awaitEvent("a", names.EventDesiredValueRefused, "property temp: not within 1 and 5")
	if o := event.InvolvedObject; o.UID != device.GetUID() || o.Kind != devices.DeviceKind || event.Type != corev1.EventTypeWarning {
		t.Errorf("event %+v", event)
	}
	e.createDevice("b", "gw-"+e.ns, "property temp: too low")
	e.awaitEvent("b", names.EventDesiredValueRefused, "too low") // many scans later
	list, err := e.cluster.Client(t).CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for _, event := range list.Items {
		if event.InvolvedObject.Name == "foreign" || event.Count > 1 {
			t.Errorf("event %+v", event)
		}
	}
	if len(list.Items) != 2 {
		t.Errorf("%d events, want 2", len(list.Items))
	}
}

// A device is looked at again when its gateway is connected, or owned, although neither the Device nor its status changes.
func TestRecorder_FollowsGateways(t *testing.T) {
	e := newEnv(t)
	e.create(devices.DeviceModelsResource, devices.DeviceModelKind, map[string]any{"metadata": map[string]any{"name": "m"}})
	for _, node := range []string{"gw-" + e.ns, "away-" + e.ns, "another-" + e.ns} {
		e.createNode(node)
	}
	e.setConnected("away-"+e.ns, corev1.ConditionFalse)
	e.createDevice("foreign", "another-"+e.ns, "too fast")
	e.createDevice("later", "away-"+e.ns, "too low")
	e.createDevice("a", "gw-"+e.ns, "too high")
	e.awaitEvent("a", names.EventDesiredValueRefused, "too high")
	list, err := e.cluster.Client(t).CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	if len(list.Items) != 1 {
		t.Errorf("%d events, want 1", len(list.Items))
	}
	e.setConnected("away-"+e.ns, corev1.ConditionTrue)
	e.awaitEvent("later", names.EventDesiredValueRefused, "too low")
	e.adopted.Store(true)
	e.awaitEvent("foreign", names.EventDesiredValueRefused, "too fast")
}

// A device is looked at again when its DeviceModel comes and goes, and when it is deleted.
func TestRecorder_FollowsModels(t *testing.T) {
	e := newEnv(t)
	e.createNode("gw-" + e.ns)
	e.createDevice("a", "gw-"+e.ns, "too high")
	await := func(want ...string) {
		t.Helper()
		kubetest.Eventually(t, time.Minute, func() error {
			if err := e.other.Scan(t.Context()); err != nil {
				return err
			}
			if got := e.other.Warned(e.ns + "/a"); !slices.Equal(got, want) {
				return fmt.Errorf("warnings %q, want %q", got, want)
			}
			return nil
		})
	}
	await(names.EventDeviceModelMissing, names.EventDesiredValueRefused)
	e.create(devices.DeviceModelsResource, devices.DeviceModelKind, map[string]any{"metadata": map[string]any{"name": "m"}})
	await(names.EventDesiredValueRefused)
	remove := func(resource, name string) {
		t.Helper()
		kit.Must(t, e.admin.Resource(devices.GroupVersion().WithResource(resource)).Namespace(e.ns).Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	remove(devices.DeviceModelsResource, "m")
	await(names.EventDeviceModelMissing, names.EventDesiredValueRefused)
	remove(devices.DevicesResource, "a")
	await()
}
