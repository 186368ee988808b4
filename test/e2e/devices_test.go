package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
)

// lampDriver is a driver of one device on edge-1, made with upstream's library. It prepares nothing, and records the claims.
const lampDriver = "lamp.frond.test"

const lampPod = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: lamp.frond.test}
spec: {selectors: [{cel: {expression: 'device.driver == "lamp.frond.test"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: lamp}
spec: {spec: {devices: {requests: [{name: lamp, exactly: {deviceClassName: lamp.frond.test}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: lit, labels: {app: lit}}
spec:
  terminationGracePeriodSeconds: 1
  resourceClaims: [{name: lamp, resourceClaimTemplateName: lamp}]
  containers:
  - {name: main, image: "localhost/frond/tools:dev", imagePullPolicy: Never, command: [sleep, "36000"], resources: {claims: [{name: lamp}]}}
`

// lampDriverPlugin implements the driver's interface of kubeletplugin.
type lampDriverPlugin struct {
	mu       sync.Mutex
	prepared map[types.UID]string // guarded by mu; claims' names
	released int                  // guarded by mu
	faults   []error              // guarded by mu
}

func (l *lampDriverPlugin) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		l.prepared[c.UID] = c.Name
		var devices []kubeletplugin.Device
		for _, d := range c.Status.Allocation.Devices.Results {
			devices = append(devices, kubeletplugin.Device{Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device})
		}
		results[c.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	return results, nil
}

func (l *lampDriverPlugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	results := map[types.UID]error{}
	for _, c := range claims {
		l.released++
		results[c.UID] = nil
	}
	return results, nil
}

func (l *lampDriverPlugin) HandleError(_ context.Context, err error, msg string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, fmt.Errorf("%s: %w", msg, err))
}

func (*lampDriverPlugin) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (l *lampDriverPlugin) preparedClaims() map[types.UID]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.prepared)
}

// gatewayClient returns a client of a gateway's local API, on its unix socket.
func gatewayClient(t *testing.T, edge string) kubernetes.Interface {
	t.Helper()
	cfg := shared.EdgeAPI(edge)
	cfg.QPS = -1
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// startLampDriver starts the driver on edge-1, with one device, until the test ends.
func startLampDriver(t *testing.T, kube kubernetes.Interface) *lampDriverPlugin {
	t.Helper()
	kubelet := filepath.Join(shared.Dir(), "edge-1", "data", "kubelet")
	data := filepath.Join(kubelet, "plugins", lampDriver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		t.Fatal(err)
	}
	driver := &lampDriverPlugin{prepared: map[types.UID]string{}}
	helper, err := kubeletplugin.Start(context.WithoutCancel(t.Context()), driver,
		kubeletplugin.DriverName(lampDriver), kubeletplugin.NodeName("edge-1"), kubeletplugin.KubeClient(kube),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(data))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	one := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		"edge-1": {Slices: []resourceslice.Slice{{Devices: []resourcev1.Device{{Name: "one"}}}}},
	}}
	if err := helper.PublishResources(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	return driver
}

// TestPod_HasItsDevice: a driver on a gateway publishes a device and reads it back, the scheduler allocates it to a pod by a
// claim made from a template, and the kubelet prepares it. After a power cut without a link the pod runs again.
func TestPod_HasItsDevice(t *testing.T) {
	needContainers(t)
	local := gatewayClient(t, "edge-1")
	driver := startLampDriver(t, local)
	slices := func(ctx context.Context, kube kubernetes.Interface) ([]resourcev1.ResourceSlice, error) {
		list, err := kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: fields.Set{
			resourcev1.ResourceSliceSelectorNodeName: "edge-1", resourcev1.ResourceSliceSelectorDriver: lampDriver,
		}.String()})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	}
	published := func(ctx context.Context) string {
		for where, kube := range map[string]kubernetes.Interface{"Kubernetes": sharedKube, "the gateway": local} {
			if found, err := slices(ctx, kube); err != nil || len(found) != 1 {
				return fmt.Sprintf("%s has %d slices: %v; driver: %v", where, len(found), err, driver.faults)
			}
		}
		return ""
	}
	eventually(t, "the device is published", published)
	applyManifest(t, lampPod)
	pod := awaitRunning(t, "app=lit", 1)[0]
	name := *pod.Status.ResourceClaimStatuses[0].ResourceClaimName
	claim, err := sharedKube.ResourceV1().ResourceClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if prepared := driver.preparedClaims(); prepared[claim.UID] != name || pod.Spec.NodeName != "edge-1" {
		t.Errorf("on %s; prepared are %v, want %s", pod.Spec.NodeName, prepared, name)
	}

	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if _, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Offline: true, Timeout: waitTimeout}); err != nil {
		t.Fatal(err)
	}
	held, err := local.ResourceV1().ResourceClaims("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || held.UID != claim.UID || held.Status.Allocation == nil {
		t.Errorf("without a link the claim is %+v: %v", held, err)
	}
	if found, err := slices(t.Context(), local); err != nil || len(found) != 1 {
		t.Errorf("without a link the gateway has %d slices: %v", len(found), err)
	}
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	// The restarted kubelet deletes the slices, once it can; the driver notices that and publishes again.
	eventually(t, "the device is published again", published)
	runKubectl(t, "delete", "pod", "lit", "--timeout=100s")
	awaitGone(t, "edge-1", wire.Key{Group: "resource.k8s.io", Resource: "resourceclaims", Namespace: "default", Name: name})
	if driver.released == 0 {
		t.Error("the driver was not told of the pod's end")
	}
}
