package e2e_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/test/kit"
)

// testSigner signs the certificates of pods, as a signer that an administrator installs in a cluster.
const testSigner = "frond.test/e2e"

// podSigner is a CA with its key.
type podSigner struct {
	ca  *mint.Authority
	pem string
}

func newPodSigner(t *testing.T, name string) podSigner {
	t.Helper()
	ca, err := mint.NewAuthority(x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	})
	kit.Must(t, err)
	return podSigner{ca: ca, pem: string(mint.EncodeCertificate(ca.Cert.Raw))}
}

// signAll answers the pending requests for the signer.
func (c podSigner) signAll(ctx context.Context, kube kubernetes.Interface) error {
	requests, err := kube.CertificatesV1().PodCertificateRequests("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range requests.Items {
		r := &requests.Items[i]
		if r.Spec.SignerName != testSigner || len(r.Status.Conditions) > 0 {
			continue
		}
		if err := c.signRequest(r); err != nil {
			return err
		}
		if _, err := kube.CertificatesV1().PodCertificateRequests("default").UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// signRequest fills in the status of a request.
func (c podSigner) signRequest(r *certificatesv1.PodCertificateRequest) error {
	asked, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return fmt.Errorf("request %s: %w", r.Name, err)
	}
	from := time.Now().Add(-time.Minute).Truncate(time.Second)
	until := from.Add(24 * time.Hour)
	der, err := c.ca.Sign(x509.Certificate{
		Subject: pkix.Name{CommonName: r.Spec.PodName}, NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, asked.PublicKey)
	if err != nil {
		return fmt.Errorf("request %s: %w", r.Name, err)
	}
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions: []metav1.Condition{{
			Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue, Reason: "Signed", LastTransitionTime: metav1.Now(),
		}},
		CertificateChain: string(mint.EncodeCertificate(der)),
		NotBefore:        &metav1.Time{Time: from}, NotAfter: &metav1.Time{Time: until}, BeginRefreshAt: &metav1.Time{Time: until.Add(-time.Hour)},
	}
	return nil
}

// bundleManifest is a trust bundle of the signer.
func bundleManifest(anchor string) string {
	return `
apiVersion: certificates.k8s.io/v1
kind: ClusterTrustBundle
metadata: {name: "frond.test:e2e:live", labels: {version: live}}
spec:
  signerName: ` + testSigner + `
  trustBundle: |
    ` + strings.ReplaceAll(strings.TrimSpace(anchor), "\n", "\n    ") + "\n"
}

const certifiedPod = `---
apiVersion: v1
kind: Pod
metadata: {name: certified, labels: {app: certified}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "localhost/frond/tools:dev", imagePullPolicy: Never, command: [sleep, "36000"], volumeMounts: [{name: trust, mountPath: /trust}]}
  volumes:
  - name: trust
    projected:
      sources:
      - clusterTrustBundle: {path: ca.pem, signerName: frond.test/e2e, labelSelector: {matchLabels: {version: live}}}
      - podCertificate: {signerName: frond.test/e2e, keyType: ECDSAP256, credentialBundlePath: credential.pem}
`

// TestProjections_BundlesAndCertificates: both are projected into a pod, are updated when their source changes, and are present
// after a power cut of the gateway without a link.
func TestProjections_BundlesAndCertificates(t *testing.T) {
	kube, ca := sharedKube, newPodSigner(t, "first")
	signer := newPodSigner(t, "signer")
	applyManifest(t, bundleManifest(ca.pem)+certifiedPod)
	var pod *corev1.Pod
	eventually(t, "the pod runs with its certificate", func(ctx context.Context) string {
		if err := signer.signAll(ctx, kube); err != nil {
			return err.Error()
		}
		list, err := listPods(ctx, "app=certified")
		if err != nil || len(list) != 1 || !isReady(&list[0]) {
			return describePods(list)
		}
		pod = &list[0]
		return ""
	})
	file := func(name string) string {
		data, err := volumeFile(pod, "kubernetes.io~projected", "trust", name)
		if err != nil {
			return err.Error()
		}
		return data
	}
	if got := file("ca.pem"); got != ca.pem {
		t.Errorf("the bundle is %q, want %q", got, ca.pem)
	}
	credential := file("credential.pem")
	if !certifiedBy(signer, credential) {
		t.Errorf("the credential is not of the signer: %q", credential)
	}

	ca = newPodSigner(t, "second")
	if _, err := shared.Kubectl(t.Context(), bundleManifest(ca.pem), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	renewed := func(want string) func(context.Context) string {
		return func(context.Context) string {
			if got := file("ca.pem"); got != want {
				return got
			}
			return ""
		}
	}
	eventually(t, "the changed bundle is in the volume", renewed(ca.pem))

	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if _, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Offline: true, Timeout: waitTimeout}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bundle is in the volume without a link", renewed(ca.pem))
	if got := file("credential.pem"); got != credential {
		t.Errorf("without a link the credential is %q, want the one from before", got)
	}

	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kubelet has a new certificate", func(ctx context.Context) string {
		if err := signer.signAll(ctx, kube); err != nil {
			return err.Error()
		}
		if got := file("credential.pem"); got == credential || !certifiedBy(signer, got) {
			return got
		}
		return ""
	})
	runKubectl(t, "delete", "pod", "certified", "--timeout=100s")
	awaitGone(t, "edge-1", wire.Key{Group: "certificates.k8s.io", Resource: "clustertrustbundles", Name: "frond.test:e2e:live"})
}

// certifiedBy reports whether a credential is a key and a certificate of a signer.
func certifiedBy(signer podSigner, credential string) bool {
	key, rest := pem.Decode([]byte(credential))
	if key == nil || !strings.Contains(key.Type, "PRIVATE KEY") {
		return false
	}
	block, rest := pem.Decode(rest)
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	return err == nil && cert.CheckSignatureFrom(signer.ca.Cert) == nil
}
