package deviceclaim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
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
	"github.com/frond-edge/frond/controllers/deviceclaim"
	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/deploy/policy"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// owner owns all nodes but one.
type owner struct{ not string }

func (o owner) Owns(node string) bool { return node != o.not }
func (owner) Term(string) uint64      { return 1 }
func (owner) Changed() <-chan struct{} {
	return nil
}
func (owner) LeaseValid() bool { return true }

// confirmations are what gateways have removed.
type confirmations struct {
	mu      sync.Mutex
	removed map[string]bool // guarded by mu; "node/device"
}

func (c *confirmations) confirm(node, device string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed[node+"/"+device] = true
}

// Removed implements deviceclaim.Deliveries.
func (c *confirmations) Removed(node string, key wire.Key) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return key.Group == devices.Group && key.Resource == devices.DevicesResource && c.removed[node+"/"+key.Name]
}

// env is an apiserver with the kinds of devices, and two gateways.
type env struct {
	*testing.T
	cluster       *kubetest.Cluster
	admin         dynamic.Interface
	ns            string
	old, new      string
	confirmations confirmations
}

// newEnv starts a Reconciler with the rights that cloudcore has for it, which owns all nodes but one.
func newEnv(t *testing.T, notOwned func(e *env) string) *env {
	t.Helper()
	return newEnvRefusing(t, notOwned, func(*http.Request) bool { return false })
}

// newEnvRefusing is newEnv, with an apiserver that forbids some of the Reconciler's writes.
func newEnvRefusing(t *testing.T, notOwned func(e *env) string, refused func(*http.Request) bool) *env {
	t.Helper()
	e := &env{T: t, cluster: shared.Cluster(t), confirmations: confirmations{removed: map[string]bool{}}}
	e.ns = e.cluster.Namespace(t)
	e.old, e.new = "old-"+e.ns, "new-"+e.ns
	var err error
	e.admin, err = dynamic.NewForConfig(e.cluster.Config())
	kit.Must(t, err)
	e.createDefinitions()
	rules := append(deviceclaim.Rules(),
		rbacv1.PolicyRule{APIGroups: []string{devices.Group}, Resources: []string{devices.DevicesResource, devices.DeviceStatusesResource}, Verbs: []string{"list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}})
	user := e.cluster.ConfigWithRules(t, "frond-deviceclaim-test", rules)
	var objects, statuses cache.Cache
	kubetest.Eventually(e, time.Minute, func() error { // the authorizer and the discovery are behind
		if objects, err = cache.New(user, cache.Options{}); err != nil {
			return err
		}
		statuses, err = devicestatus.NewStatuses(user, false)
		return err
	})
	streamstest.StartPart(e.T, objects.Start)
	streamstest.StartPart(e.T, statuses.Start)
	writer := rest.CopyConfig(user)
	writer.Wrap(func(next http.RoundTripper) http.RoundTripper { return refuser{next, refused} })
	kube, err := dynamic.NewForConfig(writer)
	kit.Must(t, err)
	r := deviceclaim.New(objects, statuses, kube, &e.confirmations, owner{notOwned(e)}, prometheus.NewRegistry(), zaptest.NewLogger(t))
	r.SetScanEvery(20 * time.Millisecond)
	streamstest.StartPart(e.T, r.Start)
	e.createNode(e.old)
	e.createNode(e.new)
	return e
}

// refuser answers some requests as an admission webhook does that forbids them.
type refuser struct {
	next    http.RoundTripper
	refused func(*http.Request) bool
}

func (r refuser) RoundTrip(request *http.Request) (*http.Response, error) {
	if !r.refused(request) {
		return r.next.RoundTrip(request)
	}
	body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"a webhook forbids it"}`
	return &http.Response{
		StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: request,
	}, nil
}

func ownsAll(*env) string { return "" }

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
			_, err := e.resource(resource).List(e.Context(), metav1.ListOptions{})
			return err
		})
	}
}

func (e *env) resource(name string) dynamic.ResourceInterface {
	return e.admin.Resource(devices.GroupVersion().WithResource(name)).Namespace(e.ns)
}

// createNode creates the Node of a gateway with a link.
func (e *env) createNode(name string) {
	e.Helper()
	_, err := e.cluster.Client(e).CoreV1().Nodes().Create(e.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.LabelEdge: ""}},
	}, metav1.CreateOptions{})
	kit.Must(e, err)
	e.setConnected(name, corev1.ConditionTrue, names.ReasonHeartbeatsArrive)
}

func (e *env) setConnected(node string, status corev1.ConditionStatus, reason string) {
	e.Helper()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": names.ConditionConnected, "status": status, "reason": reason}}}})
	kit.Must(e, err)
	_, err = e.cluster.Client(e).CoreV1().Nodes().PatchStatus(e.Context(), node, patch)
	kit.Must(e, err)
}

// createDevice creates a Device for the old node, and waits until that has claimed it.
func (e *env) createDevice(name string) {
	e.Helper()
	_, err := e.resource(devices.DevicesResource).Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": devices.GroupVersion().String(), "kind": "Device", "metadata": map[string]any{"name": name}, "spec": map[string]any{"nodeName": e.old},
	}}, metav1.CreateOptions{})
	kit.Must(e, err)
	e.awaitHolder(name, e.old)
}

// createDeviceHeld creates a Device that a node has claimed.
func (e *env) createDeviceHeld(name, node string) {
	e.Helper()
	_, err := e.resource(devices.DevicesResource).Create(e.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": devices.GroupVersion().String(), "kind": "Device", "spec": map[string]any{"nodeName": node},
		"metadata": map[string]any{"name": name, "annotations": map[string]any{names.AnnotationDeviceHolder: node}},
	}}, metav1.CreateOptions{})
	kit.Must(e, err)
}

// createStatus creates the DeviceStatus of a Device.
func (e *env) createStatus(name string, conditions ...any) {
	e.Helper()
	status := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": devices.GroupVersion().String(), "kind": "DeviceStatus", "metadata": map[string]any{"name": name},
		"status": map[string]any{"state": "ok", "extensions": map[string]any{"frond": map[string]any{"conditions": conditions}}},
	}}
	status.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: devices.GroupVersion().String(), Kind: "Device", Name: name, UID: e.device(name).GetUID()}})
	_, err := e.resource(devices.DeviceStatusesResource).Create(e.Context(), status, metav1.CreateOptions{})
	kit.Must(e, err)
}

func (e *env) patch(name, patch string) {
	e.Helper()
	_, err := e.resource(devices.DevicesResource).Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	kit.Must(e, err)
}

func (e *env) move(name, node string) {
	e.Helper()
	e.patch(name, fmt.Sprintf(`{"spec":{"nodeName":%q}}`, node))
}

func (e *env) device(name string) *unstructured.Unstructured {
	e.Helper()
	device, err := e.resource(devices.DevicesResource).Get(e.Context(), name, metav1.GetOptions{})
	kit.Must(e, err)
	return device
}

// awaitHolder waits until a node has claimed a device; "" is none.
func (e *env) awaitHolder(name, want string) {
	e.Helper()
	e.awaitHolderFor(name, want, time.Minute)
}

func (e *env) awaitHolderFor(name, want string, within time.Duration) {
	e.Helper()
	kubetest.Eventually(e, within, func() error {
		if got := e.device(name).GetAnnotations()[names.AnnotationDeviceHolder]; got != want {
			return fmt.Errorf("device %s is held by %q, want %q", name, got, want)
		}
		return nil
	})
}

// awaitCondition waits until the DeviceStatus says, or does not say, that another gateway holds a device, and returns the object as text.
func (e *env) awaitCondition(name string, held bool) (text string) {
	e.Helper()
	kubetest.Eventually(e, time.Minute, func() error {
		status, err := e.resource(devices.DeviceStatusesResource).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		raw, err := json.Marshal(status)
		kit.Must(e, err)
		if text = string(raw); strings.Contains(text, devices.ReasonHeldByOtherGateway) != held {
			return fmt.Errorf("status %s, held: %t", text, held)
		}
		return nil
	})
	return text
}

// A device that moves is held by its old gateway until that has confirmed that it has removed it. The DeviceStatus says so while it is away.
func TestReconciler_WaitsForTheOldGateway(t *testing.T) {
	e := newEnv(t, ownsAll)
	e.createDevice("d")
	e.setConnected(e.old, corev1.ConditionFalse, names.ReasonNoHeartbeat)
	e.move("d", e.new)
	text := e.awaitCondition("d", true) // so it was decided about after the move
	for _, part := range []string{"kubectl annotate device d -n " + e.ns + " " + names.AnnotationForceMove + "=" + e.old, `"observedGeneration":2`, `"kind":"Device"`} {
		if !strings.Contains(text, part) {
			t.Errorf("status %s, want %s in it", text, part)
		}
	}
	e.awaitHolder("d", e.old)
	if node := devices.DeliveredTo(e.device("d")); node != "" {
		t.Errorf("%s is given the device", node)
	}
	e.confirmations.confirm(e.old, "d")
	e.awaitHolder("d", e.new)
	e.awaitCondition("d", false)
	if node := devices.DeliveredTo(e.device("d")); node != e.new {
		t.Errorf("%q is given the device", node)
	}
}

// A condition that another writer has put into the DeviceStatus stays, and Delivered of the old gateway's report does not.
func TestReconciler_KeepsOtherConditions(t *testing.T) {
	e := newEnv(t, ownsAll)
	e.createDevice("d")
	e.setConnected(e.old, corev1.ConditionFalse, names.ReasonNoHeartbeat)
	e.createStatus("d", map[string]any{"type": "Applied", "status": "True"}, map[string]any{"type": "Delivered", "status": "True", "reason": "Delivered"}, "garbage")
	e.move("d", e.new)
	if text := e.awaitCondition("d", true); !strings.Contains(text, `"Applied"`) || !strings.Contains(text, `"state":"ok"`) || strings.Count(text, `"Delivered"`) != 1 {
		t.Errorf("status %s", text)
	}
	e.move("d", e.old) // back: the old gateway has had it all the time
	if text := e.awaitCondition("d", false); !strings.Contains(text, `"Applied"`) {
		t.Errorf("status %s", text)
	}
}

// A condition that is not due is removed, also from a device that nobody holds: cloudcore may have ended between the two writes.
func TestReconciler_RemovesALeftOverCondition(t *testing.T) {
	e := newEnv(t, ownsAll)
	e.createDevice("d")
	e.confirmations.confirm(e.old, "d")
	e.move("d", "")
	e.awaitHolder("d", "")
	e.createStatus("d", map[string]any{"type": "Delivered", "status": "False", "reason": devices.ReasonHeldByOtherGateway}, map[string]any{"type": "Applied"})
	if text := e.awaitCondition("d", false); !strings.Contains(text, `"Applied"`) {
		t.Errorf("status %s", text)
	}
}

// One Device whose writes are forbidden holds up no other.
func TestReconciler_OneForbiddenDeviceHoldsUpNoOther(t *testing.T) {
	var denials atomic.Int64
	e := newEnvRefusing(t, ownsAll, func(request *http.Request) bool {
		refused := strings.HasSuffix(request.URL.Path, "/bad")
		if refused {
			denials.Add(1)
		}
		return refused
	})
	for _, name := range []string{"bad", "good"} {
		e.createDeviceHeld(name, e.old)
	}
	e.confirmations.confirm(e.old, "bad")
	e.confirmations.confirm(e.old, "good")
	e.move("bad", e.new)
	kubetest.Eventually(t, 30*time.Second, func() error {
		if denials.Load() == 0 {
			return errors.New("nothing was forbidden yet")
		}
		return nil
	})
	e.move("good", e.new)
	e.awaitHolderFor("good", e.new, 30*time.Second)
	e.awaitHolder("bad", e.old)
}

// An order to force a move that is set while none is under way is removed: it would force a later one.
func TestReconciler_RemovesAnEarlyOrder(t *testing.T) {
	e := newEnv(t, ownsAll)
	e.createDevice("d")
	e.setConnected(e.old, corev1.ConditionFalse, names.ReasonNoHeartbeat)
	e.patch("d", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationForceMove, e.old))
	kubetest.Eventually(t, time.Minute, func() error {
		if order, set := e.device("d").GetAnnotations()[names.AnnotationForceMove]; set {
			return fmt.Errorf("the order %q is still there", order)
		}
		return nil
	})
	e.move("d", e.new)
	e.awaitCondition("d", true)
	e.awaitHolder("d", e.old)
}

// A device leaves a gateway that is known to be off, and one that no gateway shall drive is claimed by none.
func TestReconciler_OldGatewayIsOff(t *testing.T) {
	nodes := func(e *env) interface {
		Delete(context.Context, string, metav1.DeleteOptions) error
	} {
		return e.cluster.Client(e).CoreV1().Nodes()
	}
	for name, off := range map[string]func(e *env){
		"forced": func(e *env) {
			e.patch("d", fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationForceMove, e.old))
		},
		"deleted": func(e *env) { kit.Must(e, nodes(e).Delete(e.Context(), e.old, metav1.DeleteOptions{})) },
		"revoked": func(e *env) { e.setConnected(e.old, corev1.ConditionFalse, names.ReasonRevoked) },
		"out of service": func(e *env) {
			_, err := e.cluster.Client(e).CoreV1().Nodes().Patch(e.Context(), e.old, types.StrategicMergePatchType,
				[]byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","effect":"NoExecute","value":"nodeshutdown"}]}}`), metav1.PatchOptions{})
			kit.Must(e, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, ownsAll)
			e.createDevice("d")
			e.setConnected(e.old, corev1.ConditionFalse, names.ReasonNoHeartbeat)
			e.move("d", e.new)
			e.awaitCondition("d", true)
			off(e)
			e.awaitHolder("d", e.new)
			if forced, ok := e.device("d").GetAnnotations()[names.AnnotationForceMove]; ok {
				t.Errorf("the order %q is still there", forced)
			}
			e.confirmations.confirm(e.new, "d")
			e.move("d", "")
			e.awaitHolder("d", "")
		})
	}
}

// A replica that does not own the holder's node decides nothing.
func TestReconciler_OnlyTheOwnerDecides(t *testing.T) {
	e := newEnv(t, func(e *env) string { return e.new })
	e.createDevice("d")
	e.confirmations.confirm(e.old, "d")
	e.confirmations.confirm(e.new, "d")
	e.move("d", e.new)
	e.awaitHolder("d", e.new) // the owner of the old one gives it away
	e.move("d", e.old)
	e.createDevice("witness")
	e.move("witness", e.new)
	e.confirmations.confirm(e.old, "witness")
	e.awaitHolder("witness", e.new)
	e.awaitHolder("d", e.new)
}

// With the rights that the claims need, cloudcore changes nothing else of a Device: the policy refuses it.
func TestPolicy_LeavesCloudcoreTheClaimOnly(t *testing.T) {
	e := newEnv(t, ownsAll)
	e.createDevice("d")
	e.installPolicy()
	cfg := e.cluster.Config()
	cfg.Impersonate.UserName, cfg.Impersonate.Groups = "system:serviceaccount:frond-system:cloudcore", []string{"system:masters"} // RBAC allows all
	kube, err := dynamic.NewForConfig(cfg)
	kit.Must(t, err)
	patch := func(text string) error {
		_, err := kube.Resource(devices.GroupVersion().WithResource(devices.DevicesResource)).Namespace(e.ns).Patch(t.Context(), "d", types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	tries := 0
	kubetest.Eventually(t, time.Minute, func() error { // the apiserver has read the policy
		tries++
		if err := patch(fmt.Sprintf(`{"spec":{"properties":[{"name":"valve","desired":{"value":"%d"}}]}}`, tries)); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a changed spec: %w", err)
		}
		return nil
	})
	for name, text := range map[string]string{
		"a move":               `{"spec":{"nodeName":"thief"}}`,
		"no spec":              `{"spec":null}`,
		"a label":              `{"metadata":{"labels":{"a":"b"}}}`,
		"a finalizer":          `{"metadata":{"finalizers":["a.b/c"]}}`,
		"an owner":             `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"a","uid":"b"}]}}`,
		"another annotation":   `{"metadata":{"annotations":{"frond.io/deadband.valve":"1"}}}`,
		"claim and annotation": `{"metadata":{"annotations":{"frond.io/device-holder":"a","b":"c"}}}`,
	} {
		if err := patch(text); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	kit.Must(t, patch(`{"metadata":{"annotations":{"frond.io/device-holder":"elsewhere","frond.io/force-move":null}}}`))
	kit.Must(t, patch(`{"status":{"state":"ok"}}`))
	e.patch("d", `{"metadata":{"annotations":{"user":"x"},"labels":{"a":"b"}}}`) // others may
	kit.Must(t, patch(`{"metadata":{"annotations":{"frond.io/device-holder":null}}}`))
	if err := patch(`{"metadata":{"annotations":{"user":null}}}`); !apierrors.IsForbidden(err) {
		t.Errorf("a user's annotation removed: %v", err)
	}
}

// installPolicy creates the policy with its binding, and removes them with the test.
func (e *env) installPolicy() {
	e.Helper()
	for text := range strings.SplitSeq(policy.DeviceClaims(), "\n---\n") {
		o := &unstructured.Unstructured{}
		kit.Must(e, yaml.Unmarshal([]byte(text), &o.Object))
		resource := "validatingadmissionpolicies"
		if strings.HasSuffix(o.GetKind(), "Binding") {
			resource = "validatingadmissionpolicybindings"
		}
		in := e.admin.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: resource})
		_, err := in.Create(e.Context(), o, metav1.CreateOptions{})
		kit.Must(e, err)
		e.Cleanup(func() {
			kit.Must(e, in.Delete(context.WithoutCancel(e.Context()), o.GetName(), metav1.DeleteOptions{}))
		})
	}
}
