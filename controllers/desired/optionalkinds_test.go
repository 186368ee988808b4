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
	"github.com/frond-edge/frond/internal/kubetest"
)

// probes asks the real apiserver, but for kinds that a test hides.
type probes struct {
	meta metadata.Interface

	mu     sync.Mutex
	hidden map[string]error // guarded by mu; by resource
	asked  map[schema.GroupVersionResource]int
}

func newProbes(w *world, hidden map[string]error) *probes {
	w.Helper()
	meta, err := metadata.NewForConfig(w.cluster.Config())
	if err != nil {
		w.Fatal(err)
	}
	return &probes{meta: meta, hidden: hidden, asked: map[schema.GroupVersionResource]int{}}
}

func (p *probes) ask(ctx context.Context, resource schema.GroupVersionResource) error {
	p.mu.Lock()
	err := p.hidden[resource.Resource]
	p.asked[resource]++
	p.mu.Unlock()
	if err != nil {
		return err
	}
	_, err = p.meta.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

func (p *probes) show(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.hidden, resource)
}

func (p *probes) hide(resource string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hidden[resource] = err
}

func (p *probes) count(resource string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for of, times := range p.asked {
		if of.Resource == resource {
			n += times
		}
	}
	return n
}

func missingKind(resource string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, "")
}

// probing is a Config that follows what the apiserver serves.
func probing(p *probes) desired.Config {
	return desired.Config{Probe: p.ask, ProbeEvery: 20 * time.Millisecond}
}

// trustAnchor is a certificate of a CA, in PEM: an apiserver takes nothing else in a bundle.
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

// bundle makes a trust bundle, which is in no namespace, and deletes it with the test. A signer's bundle is named after it.
func (w *world) bundle(name, signer string, labels map[string]string) {
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

// listsOf names the live objects of the optional kinds that a node has.
func (w *world) listsOf(node string) []string {
	w.Helper()
	var found []string
	for key, m := range w.held(node) {
		if m.Op != wire.Delete && (key.Group == "certificates.k8s.io" || key.Group == "resource.k8s.io") {
			found = append(found, key.Resource+" "+key.Name)
		}
	}
	slices.Sort(found)
	return found
}

func (w *world) eventuallyHas(node string, want ...string) {
	w.Helper()
	slices.Sort(want)
	eventually(w, func() (any, bool) {
		got := w.listsOf(node)
		return got, slices.Equal(got, want)
	}, want)
}

// delivered reads which kinds the node is told that it gets.
func (w *world) delivered(node, resource string) (wire.DeliveredKind, bool) {
	w.Helper()
	if w.held(node)[wire.DeliveredKindsKey()].Op != wire.Apply {
		return wire.DeliveredKind{}, false
	}
	var kinds wire.DeliveredKinds
	w.object(node, wire.DeliveredKindsKey(), &kinds)
	for _, group := range []string{"certificates.k8s.io", "resource.k8s.io"} {
		if k, ok := kinds.Find(group, resource); ok {
			return k, true
		}
	}
	return wire.DeliveredKind{}, false
}

func TestTrustBundlesFollowWhatProjectionsSelect(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.account("default")
	signer := w.ns + ".test/signer"
	of := func(name string) string { return w.ns + ".test:signer:" + name }
	w.bundle(of("live"), signer, map[string]string{"version": "live"})
	w.bundle(of("old"), signer, map[string]string{"version": "old"})
	w.bundle(w.ns+"-named", "", nil)
	w.bundle(w.ns+"-unused", "", nil)
	w.engine(probing(newProbes(w, nil)), &owners{}, "desired")

	named := w.ns + "-named"
	w.pod("signed", node, projectSigner(signer, &metav1.LabelSelector{MatchLabels: map[string]string{"version": "live"}}))
	w.pod("named", node, projectBundles(corev1.ClusterTrustBundleProjection{Name: &named}))
	w.eventuallyHas(node, "clustertrustbundles "+of("live"), "clustertrustbundles "+named)
	if k, _ := w.delivered(node, "clustertrustbundles"); k.Version != "v1" {
		t.Errorf("the node is told of %+v", k)
	}

	bundles := w.client.CertificatesV1().ClusterTrustBundles()
	w.bundle(of("next"), signer, map[string]string{"version": "live"})
	w.eventuallyHas(node, "clustertrustbundles "+of("live"), "clustertrustbundles "+of("next"), "clustertrustbundles "+named)
	if _, err := bundles.Patch(t.Context(), of("live"), types.MergePatchType, []byte(`{"metadata":{"labels":{"version":"old"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyHas(node, "clustertrustbundles "+of("next"), "clustertrustbundles "+named)

	anchor, err := json.Marshal(map[string]any{"spec": map[string]any{"trustBundle": trustAnchor(t, "renewed")}})
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := bundles.Patch(t.Context(), of("next"), types.MergePatchType, anchor, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually(node, bundleKey(of("next")), "renewed", func(m wire.Message) bool { return applied(m) && m.Version == renewed.ResourceVersion })

	w.deletePod("signed")
	w.eventuallyHas(node, "clustertrustbundles "+named)
	w.deletePod("named")
	w.eventuallyHas(node)
}

// claim makes a ResourceClaim of a test's own.
func (w *world) claim(name string) {
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

func (w *world) slice(name, node string) {
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

func TestDevicesFollowTheirPodsAndNodes(t *testing.T) {
	w := newWorld(t)
	node, other := w.node("a"), w.node("b")
	w.account("default")
	w.claim("made-for-pod")
	w.claim("unused")
	w.slice(w.ns+"-of-a", node)
	w.slice(w.ns+"-of-b", other)
	w.engine(probing(newProbes(w, nil)), &owners{}, "desired")
	w.eventuallyHas(node, "resourceslices "+w.ns+"-of-a")
	w.eventuallyHas(other, "resourceslices "+w.ns+"-of-b")

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
	w.eventuallyHas(node, "resourceclaims made-for-pod", "resourceslices "+w.ns+"-of-a")
	w.deletePod("uses")
	w.eventuallyHas(node, "resourceslices "+w.ns+"-of-a")
	w.eventuallyHas(other, "resourceslices "+w.ns+"-of-b")
}

// A kind that is not served stops nothing, and what appears later is noticed. What was delivered stays while nobody knows more.
func TestAKindThatIsNotServedComesLater(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.account("default")
	name := w.ns + "-named"
	w.bundle(name, "", nil)
	signer := w.ns + ".test/signer"
	w.bundle(w.ns+".test:signer:one", signer, nil)
	w.configMap("used", "1")
	p := newProbes(w, map[string]error{
		"clustertrustbundles": missingKind("clustertrustbundles"),
		"resourceclaims":      apierrors.NewForbidden(schema.GroupResource{Resource: "resourceclaims"}, "", nil),
	})
	first := &owners{}
	w.engine(probing(p), first, "desired")
	w.pod("one", node, projectBundles(corev1.ClusterTrustBundleProjection{Name: &name}), projectSigner(signer, &metav1.LabelSelector{}), mountConfigMap("used"))
	w.eventually(node, key("pods", w.ns, "one"), "the pod", applied)
	w.eventually(node, wire.SnapshotMarker(), "the marker", applied)
	eventually(w, func() (any, bool) {
		bundles, _ := w.delivered(node, "clustertrustbundles")
		claims, _ := w.delivered(node, "resourceclaims")
		return []wire.DeliveredKind{bundles, claims}, bundles.Absence == wire.KindNotServed && claims.Absence == wire.KindForbidden
	}, "both are said to be absent, with the reason")
	w.eventuallyHas(node)

	p.show("clustertrustbundles")
	both := []string{"clustertrustbundles " + name, "clustertrustbundles " + w.ns + ".test:signer:one"}
	w.eventuallyHas(node, both...)

	// An apiserver that is being upgraded lacks it for a moment.
	p.hide("clustertrustbundles", missingKind("clustertrustbundles"))
	before := p.count("clustertrustbundles")
	eventually(w, func() (any, bool) {
		k, _ := w.delivered(node, "clustertrustbundles")
		return k, k.Absence == wire.KindNotServed
	}, "given up after some probes")
	if n := p.count("clustertrustbundles") - before; n < 5*3 {
		t.Errorf("given up after %d questions, in three versions each", n)
	}
	w.setConfigMap("used", "2") // what else there is goes on
	w.eventually(node, key("configmaps", w.ns, "used"), "changed", func(m wire.Message) bool { return m.Version != "" && applied(m) })
	w.eventuallyHas(node, both...)

	// Another replica takes over and does not see the kind at all: what is held stays.
	first.set(node, false)
	w.engine(probing(p), &owners{}, "desired-2")
	w.setConfigMap("used", "3")
	last, err := w.client.CoreV1().ConfigMaps(w.ns).Get(t.Context(), "used", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually(node, key("configmaps", w.ns, "used"), "changed by the other", func(m wire.Message) bool { return m.Version == last.ResourceVersion })
	w.eventuallyHas(node, both...)

	if err := w.client.CertificatesV1().ClusterTrustBundles().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p.show("clustertrustbundles")
	w.eventuallyHas(node, both[1])
}

// eventually waits until a look finds what is wanted.
func eventually(w *world, look func() (any, bool), want any) {
	w.Helper()
	kubetest.Eventually(w, 20*time.Second, func() error {
		if got, ok := look(); !ok {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}
