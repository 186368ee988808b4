package devicecopy_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/controllers/devicecopy"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// owner owns the nodes that it is told to.
type owner struct {
	mu      sync.Mutex
	owns    bool
	changed chan struct{}
}

func (o *owner) Owns(string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.owns
}

func (o *owner) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

func (o *owner) Term(string) uint64 { return 1 }
func (o *owner) LeaseValid() bool   { return true }

func (o *owner) take() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.owns = true
	close(o.changed)
	o.changed = make(chan struct{})
}

// env is an apiserver with the kinds of devices, and a Copier with the rights that cloudcore has for it, which is not started.
type env struct {
	*testing.T
	admin   dynamic.Interface
	ns      string
	owner   *owner
	metrics *prometheus.Registry
	copier  *devicecopy.Copier
}

func newEnv(t *testing.T) *env {
	t.Helper()
	cluster := shared.Cluster(t)
	e := &env{T: t, ns: cluster.Namespace(t), owner: &owner{owns: true, changed: make(chan struct{})}, metrics: prometheus.NewRegistry()}
	var err error
	e.admin, err = dynamic.NewForConfig(cluster.Config())
	kit.Must(t, err)
	e.createDefinitions()
	user := cluster.ConfigWithRules(t, "frond-devicecopy-test", append(devicecopy.Rules(), rbacv1.PolicyRule{
		APIGroups: []string{devices.Group}, Resources: []string{devices.DevicesResource, devices.DeviceStatusesResource}, Verbs: []string{"list", "watch"},
	}))
	var objects cache.Cache
	kubetest.Eventually(t, time.Minute, func() error { // the authorizer and the discovery are behind
		objects, err = cache.New(user, cache.Options{})
		return err
	})
	streamstest.StartPart(t, objects.Start)
	kube, err := dynamic.NewForConfig(user)
	kit.Must(t, err)
	e.copier = devicecopy.New(50, objects, objects, kube, e.owner, e.metrics, zaptest.NewLogger(t))
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
	for _, resource := range []string{devices.DevicesResource, devices.DeviceStatusesResource} {
		kubetest.Eventually(e, time.Minute, func() error {
			_, err := e.admin.Resource(devices.GroupVersion().WithResource(resource)).List(e.Context(), metav1.ListOptions{})
			return err
		})
	}
}

func (e *env) in(resource string) dynamic.ResourceInterface {
	return e.admin.Resource(devices.GroupVersion().WithResource(resource)).Namespace(e.ns)
}

func (e *env) create(resource, kind string, object map[string]any) *unstructured.Unstructured {
	e.Helper()
	object["apiVersion"], object["kind"] = devices.GroupVersion().String(), kind
	o, err := e.in(resource).Create(e.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	kit.Must(e, err)
	return o
}

// createDevice creates a Device, and its DeviceStatus with a state.
func (e *env) createDevice(name, state string) {
	e.Helper()
	device := e.create(devices.DevicesResource, devices.DeviceKind, map[string]any{
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"nodeName": "edge-1"}, "status": map[string]any{"reportToCloud": true, "reportCycle": int64(7)},
	})
	e.create(devices.DeviceStatusesResource, devices.DeviceStatusKind, map[string]any{
		"metadata": map[string]any{"name": name, "ownerReferences": []any{map[string]any{
			"apiVersion": devices.GroupVersion().String(), "kind": devices.DeviceKind, "name": name, "uid": string(device.GetUID()),
		}}},
		"status": map[string]any{"state": state, "lastOnlineTime": "2026-01-02T03:04:05Z", "twins": []any{map[string]any{
			"propertyName": "t", "reported": map[string]any{"value": "1", "metadata": map[string]any{"timestamp": "5"}},
		}}},
	})
}

func (e *env) patch(resource, name, patch string) {
	e.Helper()
	_, err := e.in(resource).Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	kit.Must(e, err)
}

func (e *env) device(name string) *unstructured.Unstructured {
	e.Helper()
	o, err := e.in(devices.DevicesResource).Get(e.Context(), name, metav1.GetOptions{})
	kit.Must(e, err)
	return o
}

func (e *env) awaitState(name, want string) *unstructured.Unstructured {
	e.Helper()
	var device *unstructured.Unstructured
	kubetest.Eventually(e, time.Minute, func() error {
		device = e.device(name)
		if state, _, _ := unstructured.NestedString(device.Object, "status", "state"); state != want {
			return fmt.Errorf("the state is %q, want %q", state, want)
		}
		return nil
	})
	return device
}

// A Device has in its status what its DeviceStatus has, beside what its users have there, and its spec counts as unchanged.
func TestCopier_CopiesStatus(t *testing.T) {
	e := newEnv(t)
	streamstest.StartPart(t, e.copier.Start)
	e.createDevice("a", "ok")
	first := e.awaitState("a", "ok")
	if rule, _, _ := unstructured.NestedBool(first.Object, "status", "reportToCloud"); !rule {
		t.Error("the rule of reports is gone")
	}
	twins, _, _ := unstructured.NestedSlice(first.Object, "status", "twins")
	if value, _, _ := unstructured.NestedString(twins[0].(map[string]any), "reported", "value"); value != "1" {
		t.Errorf("twins %v", twins)
	}
	if online, _, _ := unstructured.NestedString(first.Object, "status", "lastOnlineTime"); online != "2026-01-02T03:04:05Z" {
		t.Errorf("lastOnlineTime is %q", online)
	}
	e.patch(devices.DeviceStatusesResource, "a", `{"status":{"state":"offline"}}`)
	second := e.awaitState("a", "offline")
	if second.GetGeneration() != 3 || devices.SpecGeneration(second) != 1 {
		t.Errorf("generation %d, of the spec %d; want 3 and 1", second.GetGeneration(), devices.SpecGeneration(second))
	}
	e.patch(devices.DevicesResource, "a", `{"spec":{"protocol":{"protocolName":"modbus"}}}`)
	e.patch(devices.DeviceStatusesResource, "a", `{"status":{"state":"ok"}}`)
	third := e.awaitState("a", "ok")
	if third.GetGeneration() != 5 || devices.SpecGeneration(third) != 4 {
		t.Errorf("generation %d, of the spec %d; want 5 and 4", third.GetGeneration(), devices.SpecGeneration(third))
	}
}

// A Device is written once in the interval, however often its status changes.
func TestCopier_LimitsWritesOfADevice(t *testing.T) {
	e := newEnv(t)
	e.copier.SetInterval(time.Hour)
	streamstest.StartPart(t, e.copier.Start)
	e.createDevice("a", "ok")
	e.awaitState("a", "ok")
	for i := range 5 {
		e.patch(devices.DeviceStatusesResource, "a", fmt.Sprintf(`{"status":{"state":"state-%d"}}`, i))
	}
	e.createDevice("b", "ok") // the copier has seen all before
	e.awaitState("b", "ok")
	e.awaitState("a", "ok")
	kubetest.Eventually(t, time.Minute, func() error { // a write is counted after it is done
		if n := streamstest.SumCounters(t, e.metrics, "frond_devicecopy_writes_total", "ok"); n != 2 {
			return fmt.Errorf("%v writes, want 2", n)
		}
		return nil
	})
}

// Only the replica that owns a node writes its Devices, and it does as soon as it owns the node.
func TestCopier_WritesForOwnedNodes(t *testing.T) {
	e := newEnv(t)
	e.owner.owns = false
	streamstest.StartPart(t, e.copier.Start)
	e.createDevice("a", "ok")
	e.owner.take()
	e.awaitState("a", "ok")
}
