package devicestatus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// env is an apiserver with the kinds of devices, and an applier with the rights that cloudcore has for it.
type env struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   dynamic.Interface
	ns      string
	objects cache.Cache
	// user has cloudcore's rights.
	user    *rest.Config
	lookup  *devicestatus.Lookup
	applier *devicestatus.Applier
	metrics *prometheus.Registry
	// overtaken says that a newer report is in the stream.
	overtaken atomic.Bool
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{T: t, cluster: shared.Cluster(t), metrics: prometheus.NewRegistry()}
	e.ns = e.cluster.Namespace(t)
	var err error
	e.admin, err = dynamic.NewForConfig(e.cluster.Config())
	kit.Must(t, err)
	e.createDefinitions()
	rules := append(devicestatus.Rules(), rbacv1.PolicyRule{APIGroups: []string{devices.Group}, Resources: []string{devices.DevicesResource}, Verbs: []string{"list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}})
	e.user = e.cluster.ConfigWithRules(t, "frond-devicestatus-test", rules)
	e.startCache()
	kube, err := dynamic.NewForConfig(e.user)
	kit.Must(t, err)
	e.lookup = devicestatus.NewLookup(e.objects, kube)
	e.applier = devicestatus.New(e.lookup, kube, func(context.Context, wire.Message) (bool, error) { return !e.overtaken.Load(), nil }, e.metrics, zaptest.NewLogger(t))
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

func (e *env) startCache() {
	e.Helper()
	var err error
	kubetest.Eventually(e, time.Minute, func() error { // the authorizer and the discovery are behind
		e.objects, err = cache.New(e.user, cache.Options{})
		return err
	})
	streamstest.StartPart(e.T, e.objects.Start)
	kubetest.Eventually(e, time.Minute, func() error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(devices.GroupVersion().WithKind("DeviceList"))
		return e.objects.List(e.Context(), list)
	})
}

func (e *env) resource(name string) dynamic.ResourceInterface {
	return e.admin.Resource(devices.GroupVersion().WithResource(name)).Namespace(e.ns)
}

// createDevice creates a Device for a node and returns its UID.
func (e *env) createDevice(name, node string) types.UID {
	e.Helper()
	o, err := e.resource(devices.DevicesResource).Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": devices.GroupVersion().String(), "kind": "Device", "metadata": map[string]any{"name": name}, "spec": map[string]any{"nodeName": node},
	}}, metav1.CreateOptions{})
	kit.Must(e, err)
	return o.GetUID()
}

// report applies a report of a node.
func (e *env) report(node, name string, uid types.UID, status string) error {
	e.Helper()
	return e.applier.Handle(e.Context(), wire.Message{
		Node: node, Op: wire.Apply, UID: string(uid), Key: wire.Key{Group: devices.Group, Resource: devices.DeviceStatusesResource, Namespace: e.ns, Name: name},
		Object: fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q},"status":%s}`, name, e.ns, status),
	})
}

// status returns the DeviceStatus of a device, nil if there is none.
func (e *env) status(name string) *devices.DeviceStatus {
	e.Helper()
	o, err := e.resource(devices.DeviceStatusesResource).Get(e.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	kit.Must(e, err)
	raw, err := json.Marshal(o.Object)
	kit.Must(e, err)
	var status devices.DeviceStatus
	kit.Must(e, json.Unmarshal(raw, &status))
	return &status
}

func (e *env) counted(name, value string, n float64) {
	e.Helper()
	if got := streamstest.SumCounters(e.T, e.metrics, "frond_devicestatus_"+name, value); got != n {
		e.Errorf("%s of %s is %v, want %v", name, value, got, n)
	}
}

const ok = `{"state":"ok","twins":[{"propertyName":"t","reported":{"value":"1","metadata":{"timestamp":"5"}}}],"extensions":{"frond":{"conditions":[]}}}`

// A report makes the DeviceStatus, owned by the Device, and later ones replace its status as a whole, by one write each.
func TestApplier_WritesStatus(t *testing.T) {
	e := newEnv(t)
	uid := e.createDevice("a", "edge-1")
	kit.Must(t, e.report("edge-1", "a", uid, ok))
	first := e.status("a")
	if first == nil || first.Status.State != "ok" || len(first.Status.Twins) != 1 || first.Status.Twins[0].Reported.Value != "1" {
		t.Fatalf("status %+v", first)
	}
	if o := first.OwnerReferences; len(o) != 1 || o[0].UID != uid || o[0].Kind != "Device" {
		t.Errorf("owners %+v", o)
	}
	began := time.Now()
	kit.Must(t, e.report("edge-1", "a", uid, `{"state":"offline"}`))
	second := e.status("a")
	if second.Status.State != "offline" || len(second.Status.Twins) != 0 || second.Status.Extensions != nil {
		t.Errorf("status %+v", second.Status)
	}
	kit.Must(t, e.report("edge-1", "a", uid, `{"state":"offline"}`))
	if again := e.status("a"); again.ResourceVersion != second.ResourceVersion {
		t.Error("the same status was written again")
	}
	calls := e.cluster.Audit(t, began, func(entry kubetest.AuditEntry) bool {
		return strings.Contains(entry.User.Username, "devicestatus-test") && entry.Verb != "watch" && entry.Verb != "list"
	})
	if len(calls) != 2 {
		t.Errorf("two reports needed %d calls: %+v", len(calls), calls)
	}
	e.counted("writes_total", "create", 1)
}

// A node writes no status but that of its own Device, and only of the one that exists now.
func TestApplier_RefusesWhatIsNotTheNodes(t *testing.T) {
	e := newEnv(t)
	uid := e.createDevice("a", "edge-1")
	kit.Must(t, e.report("thief", "a", "guessed", ok))
	kit.Must(t, e.report("edge-1", "none", uid, ok))
	e.counted("dropped_total", "foreign", 2)
	kit.Must(t, e.report("edge-1", "a", "another", ok))
	e.counted("dropped_total", "uid", 1)
	kit.Must(t, e.report("thief", "a", "another", ok)) // the answer is remembered now
	e.counted("dropped_total", "foreign", 3)
	e.overtaken.Store(true)
	kit.Must(t, e.report("edge-1", "a", uid, ok))
	e.counted("dropped_total", "replaced", 1)
	if s := e.status("a"); s != nil {
		t.Errorf("status %+v", s)
	}
}

// What a gateway still reports of a device that has moved away is late, and no sign of a foreign gateway, however often it comes.
func TestApplier_CountsLateReportsOfMovedDevices(t *testing.T) {
	e := newEnv(t)
	uid := e.createDevice("a", "edge-1")
	kit.Must(t, e.report("edge-1", "a", uid, ok))
	e.move("a", "edge-2")
	kubetest.Eventually(t, time.Minute, func() error { // the cache may be behind: until then the reports are taken
		kit.Must(t, e.report("edge-1", "a", uid, `{"state":"late"}`))
		if streamstest.SumCounters(t, e.metrics, "frond_devicestatus_dropped_total", "moved") == 0 {
			return errors.New("no report was late")
		}
		return nil
	})
	kit.Must(t, e.report("edge-1", "a", uid, ok))
	e.counted("dropped_total", "moved", 2)
	e.counted("dropped_total", "foreign", 0)
	kit.Must(t, e.report("edge-2", "a", uid, ok))
	if s := e.status("a"); s.Status.State != "ok" {
		t.Errorf("status %+v", s.Status)
	}
}

// move assigns a Device to another node.
func (e *env) move(name, node string) {
	e.Helper()
	_, err := e.resource(devices.DevicesResource).Patch(e.Context(), name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"nodeName":%q}}`, node), metav1.PatchOptions{})
	kit.Must(e, err)
}

// Malformed reports can never be applied.
func TestApplier_RefusesGarbage(t *testing.T) {
	e := newEnv(t)
	uid := e.createDevice("a", "edge-1")
	for name, m := range map[string]wire.Message{
		"deletion": {Op: wire.Delete}, "not JSON": {Op: wire.Apply, Object: []byte("x")}, "another name": {Op: wire.Apply, Object: []byte(`{"metadata":{"name":"b"}}`)},
		"large": {Op: wire.Apply, Object: make([]byte, 600<<10)},
	} {
		m.Node, m.UID, m.Key = "edge-1", string(uid), wire.Key{Group: devices.Group, Resource: devices.DeviceStatusesResource, Namespace: e.ns, Name: "a"}
		if err := e.applier.Handle(t.Context(), m); !errors.Is(err, wire.ErrPermanent) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A Device that was created again has no part of the status of the one before, even before that one is collected.
func TestApplier_ReplacesAnEarlierDevicesStatus(t *testing.T) {
	e := newEnv(t)
	uid := e.createDevice("a", "edge-1")
	kit.Must(t, e.report("edge-1", "a", uid, ok))
	kit.Must(t, e.resource(devices.DevicesResource).Delete(t.Context(), "a", metav1.DeleteOptions{})) // nothing collects here
	fresh := e.createDevice("a", "edge-1")
	kubetest.Eventually(t, time.Minute, func() error { return e.report("edge-1", "a", fresh, `{"state":"online"}`) })
	kubetest.Eventually(t, time.Minute, func() error {
		if err := e.report("edge-1", "a", fresh, `{"state":"online"}`); err != nil {
			return err
		}
		if s := e.status("a"); s == nil || len(s.OwnerReferences) != 1 || s.OwnerReferences[0].UID != fresh || s.Status.State != "online" || len(s.Status.Twins) != 0 {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}

// A gateway that asks for many devices that are not its own does not make cloudcore ask the apiserver for all of them.
func TestLookup_LimitsLiveReads(t *testing.T) {
	e := newEnv(t)
	e.createDevice("a", "edge-1")
	began, busy := time.Now(), 0
	for i := range 300 {
		found, err := e.lookup.IsAssigned(t.Context(), "thief", e.ns, fmt.Sprint("none-", i))
		if errors.Is(err, devicestatus.ErrBusy) {
			busy++
		} else if err != nil || found {
			t.Fatalf("%t, %v", found, err)
		}
	}
	if most := 60 + int(20*time.Since(began).Seconds()); 300-busy > most {
		t.Errorf("%d devices were read, at most %d", 300-busy, most)
	}
	kubetest.Eventually(t, time.Minute, func() error { // its own is found however busy
		if found, err := e.lookup.IsAssigned(t.Context(), "edge-1", e.ns, "a"); err != nil || !found {
			return fmt.Errorf("%t: %w", found, err)
		}
		return nil
	})
}

// owner owns all nodes.
type owner struct{}

func (owner) Owns(string) bool         { return true }
func (owner) Term(string) uint64       { return 1 }
func (owner) Changed() <-chan struct{} { return nil }
func (owner) LeaseValid() bool         { return true }

// While the old gateway of a device that has moved holds it, that one is believed, and the new one is not.
func TestApplier_BelievesTheHolder(t *testing.T) {
	e := newEnv(t)
	node, next := "old-"+e.ns, "new-"+e.ns
	uid := e.createDevice("a", node)
	patch := func(holder string) {
		t.Helper()
		text := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}},"spec":{"nodeName":%q}}`, names.AnnotationDeviceHolder, holder, next)
		_, err := e.resource(devices.DevicesResource).Patch(t.Context(), "a", types.MergePatchType, []byte(text), metav1.PatchOptions{})
		kit.Must(t, err)
		kubetest.Eventually(t, time.Minute, func() error { // the cache follows
			if held, err := e.lookup.IsAssigned(t.Context(), holder, e.ns, "a"); err != nil || !held {
				return fmt.Errorf("%s holds it: %t, %w", holder, held, err)
			}
			return nil
		})
	}
	patch(node)
	kit.Must(t, e.report(next, "a", uid, `{"state":"new"}`))
	kit.Must(t, e.report(node, "a", uid, `{"state":"old"}`))
	if s := e.status("a"); s == nil || s.Status.State != "old" {
		t.Errorf("status %+v", s)
	}
	patch(next)
	kit.Must(t, e.report(next, "a", uid, `{"state":"new"}`))
	if s := e.status("a"); s.Status.State != "new" {
		t.Errorf("status %+v", s)
	}
}

// setConnected creates the Node, or changes its condition.
func (e *env) setConnected(node string, status corev1.ConditionStatus) {
	e.Helper()
	client := e.cluster.Client(e).CoreV1().Nodes()
	if _, err := client.Create(e.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{}); err == nil {
		e.Cleanup(func() { kit.Must(e, client.Delete(context.WithoutCancel(e.Context()), node, metav1.DeleteOptions{})) })
	}
	patch := fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":%q,"lastTransitionTime":%q}]}}`, names.ConditionConnected, status, time.Now().UTC().Format(time.RFC3339))
	_, err := client.Patch(e.Context(), node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	kit.Must(e, err)
}
