package desired_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// fakeProbe probes the real apiserver, except for kinds that a test hides.
type fakeProbe struct {
	meta metadata.Interface

	mu          sync.Mutex
	hidden      map[string]error // guarded by mu; by resource
	probeCounts map[schema.GroupVersionResource]int
}

func newFakeProbe(w *engineEnv, hidden map[string]error) *fakeProbe {
	w.Helper()
	meta, err := metadata.NewForConfig(w.cluster.Config())
	if err != nil {
		w.Fatal(err)
	}
	return &fakeProbe{meta: meta, hidden: hidden, probeCounts: map[schema.GroupVersionResource]int{}}
}

func (p *fakeProbe) probeResource(ctx context.Context, resource schema.GroupVersionResource) error {
	p.mu.Lock()
	err := p.hidden[resource.Resource]
	p.probeCounts[resource]++
	p.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = p.meta.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

func (p *fakeProbe) showResource(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.hidden, resource)
}

func (p *fakeProbe) hideResource(resource string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hidden[resource] = err
}

func (p *fakeProbe) probeCount(resource string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, times := range p.probeCounts {
		if of.Resource == resource {
			n += times
		}
	}
	return n
}

func missingKind(resource string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, "")
}

// probeConfig returns a Config that syncs what the apiserver serves.
func probeConfig(p *fakeProbe) desired.Config {
	return desired.Config{Probe: p.probeResource, ProbeEvery: 20 * time.Millisecond}
}

// trustAnchor returns a CA certificate in PEM: an apiserver accepts nothing else in a bundle.
func trustAnchor(t testing.TB, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// createBundle creates a trust bundle, which is in no namespace, and deletes it with the test. A signer's bundle is
// named after it.
func (w *engineEnv) createBundle(name, signer string, labels map[string]string) {
	w.Helper()
	_, err := w.client.CertificatesV1().ClusterTrustBundles().Create(w.Context(), &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: trustAnchor(w, name)},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CertificatesV1().ClusterTrustBundles().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{})
	})
}

// optionalObjects returns the names of a node's live objects of the optional kinds.
func (w *engineEnv) optionalObjects(node string) []string {
	w.Helper()
	var found []string
	for key, m := range w.heldMessages(node) {
		if m.Op != wire.Delete && (key.Group == "certificates.k8s.io" || key.Group == "resource.k8s.io") {
			found = append(found, key.Resource+" "+key.Name)
		}
	}
	slices.Sort(found)
	return found
}

func (w *engineEnv) eventuallyHasOptional(node string, want ...string) {
	w.Helper()
	slices.Sort(want)
	eventuallyMatches(w, func() (any, bool) {
		got := w.optionalObjects(node)
		return got, slices.Equal(got, want)
	}, want)
}

// deliveredKind returns a kind's entry in the list of delivered kinds of the node.
func (w *engineEnv) deliveredKind(node, resource string) (wire.DeliveredKind, bool) {
	w.Helper()
	if w.heldMessages(node)[wire.DeliveredKindsKey()].Op != wire.Apply {
		return wire.DeliveredKind{}, false
	}
	var kinds wire.DeliveredKinds
	w.decodeObject(node, wire.DeliveredKindsKey(), &kinds)
	for _, group := range []string{"certificates.k8s.io", "resource.k8s.io"} {
		if k, ok := kinds.Find(group, resource); ok {
			return k, true
		}
	}
	return wire.DeliveredKind{}, false
}

func TestEngine_PublishesSelectedTrustBundles(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	signer := w.ns + ".test/signer"
	of := func(name string) string { return w.ns + ".test:signer:" + name }
	w.createBundle(of("live"), signer, map[string]string{"version": "live"})
	w.createBundle(of("old"), signer, map[string]string{"version": "old"})
	w.createBundle(w.ns+"-named", "", nil)
	w.createBundle(w.ns+"-unused", "", nil)
	w.startEngine(probeConfig(newFakeProbe(w, nil)), &fakeOwnership{}, "desired")

	named := w.ns + "-named"
	w.createPod("signed", node, projectSigner(signer, &metav1.LabelSelector{MatchLabels: map[string]string{"version": "live"}}))
	w.createPod("named", node, projectBundles(corev1.ClusterTrustBundleProjection{Name: &named}))
	w.eventuallyHasOptional(node, "clustertrustbundles "+of("live"), "clustertrustbundles "+named)
	if k, _ := w.deliveredKind(node, "clustertrustbundles"); k.Version != "v1" {
		t.Errorf("the node is told of %+v", k)
	}

	bundles := w.client.CertificatesV1().ClusterTrustBundles()
	w.createBundle(of("next"), signer, map[string]string{"version": "live"})
	w.eventuallyHasOptional(node, "clustertrustbundles "+of("live"), "clustertrustbundles "+of("next"), "clustertrustbundles "+named)
	if _, err := bundles.Patch(t.Context(), of("live"), types.MergePatchType, []byte(`{"metadata":{"labels":{"version":"old"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyHasOptional(node, "clustertrustbundles "+of("next"), "clustertrustbundles "+named)

	anchor, err := json.Marshal(map[string]any{"spec": map[string]any{"trustBundle": trustAnchor(t, "renewed")}})
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := bundles.Patch(t.Context(), of("next"), types.MergePatchType, anchor, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.eventuallyMessage(node, bundleKey(of("next")), "renewed", func(m wire.Message) bool { return isApplied(m) && m.Version == renewed.ResourceVersion })

	w.deletePod("signed")
	w.eventuallyHasOptional(node, "clustertrustbundles "+named)
	w.deletePod("named")
	w.eventuallyHasOptional(node)
}

// createClaim creates a ResourceClaim of a test's own.
func (w *engineEnv) createClaim(name string) {
	w.Helper()
	_, err := w.client.ResourceV1().ResourceClaims(w.ns).Create(w.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "test.example.com"},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
}

func (w *engineEnv) createSlice(name, node string) {
	w.Helper()
	_, err := w.client.ResourceV1().ResourceSlices().Create(w.Context(), &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "test.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "one"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.ResourceV1().ResourceSlices().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{})
	})
}

func TestEngine_PublishesDevicesOfPodsAndNodes(t *testing.T) {
	w := newEngineEnv(t)
	node, other := w.createNode("a"), w.createNode("b")
	w.createAccount("default")
	w.createClaim("made-for-pod")
	w.createClaim("unused")
	w.createSlice(w.ns+"-of-a", node)
	w.createSlice(w.ns+"-of-b", other)
	w.startEngine(probeConfig(newFakeProbe(w, nil)), &fakeOwnership{}, "desired")
	w.eventuallyHasOptional(node, "resourceslices "+w.ns+"-of-a")
	w.eventuallyHasOptional(other, "resourceslices "+w.ns+"-of-b")

	template := "devices"
	pod, err := w.client.CoreV1().Pods(w.ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "uses"},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: &template}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim := "made-for-pod"
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "device", ResourceClaimName: &claim}}
	if _, err := w.client.CoreV1().Pods(w.ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyHasOptional(node, "resourceclaims made-for-pod", "resourceslices "+w.ns+"-of-a")
	w.deletePod("uses")
	w.eventuallyHasOptional(node, "resourceslices "+w.ns+"-of-a")
	w.eventuallyHasOptional(other, "resourceslices "+w.ns+"-of-b")
}

// A kind that is not served blocks nothing, and its later appearance is detected. What was delivered stays while
// nothing more is known.
func TestEngine_DetectsKindServedLater(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	name := w.ns + "-named"
	w.createBundle(name, "", nil)
	signer := w.ns + ".test/signer"
	w.createBundle(w.ns+".test:signer:one", signer, nil)
	w.createConfigMap("used", "1")
	p := newFakeProbe(w, map[string]error{
		"clustertrustbundles": missingKind("clustertrustbundles"),
		"resourceclaims":      apierrors.NewForbidden(schema.GroupResource{Resource: "resourceclaims"}, "", nil),
	})
	first := &fakeOwnership{}
	w.startEngine(probeConfig(p), first, "desired")
	w.createPod("one", node, projectBundles(corev1.ClusterTrustBundleProjection{Name: &name}), projectSigner(signer, &metav1.LabelSelector{}), mountConfigMap("used"))
	w.eventuallyMessage(node, coreKey("pods", w.ns, "one"), "the pod", isApplied)
	w.eventuallyMessage(node, wire.SnapshotMarker(), "the marker", isApplied)
	eventuallyMatches(w, func() (any, bool) {
		bundles, _ := w.deliveredKind(node, "clustertrustbundles")
		claims, _ := w.deliveredKind(node, "resourceclaims")
		return []wire.DeliveredKind{bundles, claims}, bundles.Absence == wire.KindNotServed && claims.Absence == wire.KindForbidden
	}, "both are said to be absent, with the reason")
	w.eventuallyHasOptional(node)

	p.showResource("clustertrustbundles")
	both := []string{"clustertrustbundles " + name, "clustertrustbundles " + w.ns + ".test:signer:one"}
	w.eventuallyHasOptional(node, both...)

	// An apiserver that is being upgraded lacks it for a moment.
	p.hideResource("clustertrustbundles", missingKind("clustertrustbundles"))
	before := p.probeCount("clustertrustbundles")
	eventuallyMatches(w, func() (any, bool) {
		k, _ := w.deliveredKind(node, "clustertrustbundles")
		return k, k.Absence == wire.KindNotServed
	}, "given up after some probes")
	if n := p.probeCount("clustertrustbundles") - before; n < 5*3 {
		t.Errorf("given up after %d questions, in three versions each", n)
	}
	w.setConfigMap("used", "2") // all other kinds continue
	w.eventuallyMessage(node, coreKey("configmaps", w.ns, "used"), "changed", func(m wire.Message) bool { return m.Version != "" && isApplied(m) })
	w.eventuallyHasOptional(node, both...)

	// Another replica takes over and does not find the kind at all: what was published stays.
	first.setOwned(node, false)
	w.startEngine(probeConfig(p), &fakeOwnership{}, "desired-2")
	w.setConfigMap("used", "3")
	last, err := w.client.CoreV1().ConfigMaps(w.ns).Get(t.Context(), "used", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.eventuallyMessage(node, coreKey("configmaps", w.ns, "used"), "changed by the other", func(m wire.Message) bool { return m.Version == last.ResourceVersion })
	w.eventuallyHasOptional(node, both...)

	if err := w.client.CertificatesV1().ClusterTrustBundles().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.showResource("clustertrustbundles")
	w.eventuallyHasOptional(node, both[1])
}

// eventuallyMatches waits until a look finds what is wanted.
func eventuallyMatches(w *engineEnv, look func() (any, bool), want any) {
	w.Helper()
	kubetest.Eventually(w, 20*time.Second, func() error {
		if got, ok := look(); !ok {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}
