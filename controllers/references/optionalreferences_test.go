package references_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

func projectBundles(p corev1.ClusterTrustBundleProjection) corev1.VolumeSource {
	p.Path = "ca.pem"
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &p}}}}
}

func bundleKey(name string) wire.Key {
	return wire.Key{Group: "certificates.k8s.io", Resource: "clustertrustbundles", Name: name}
}

func claimKey(namespace, name string) wire.Key {
	return wire.Key{Group: "resource.k8s.io", Resource: "resourceclaims", Namespace: namespace, Name: name}
}

func TestPodRefs_TrustBundlesAndDevices(t *testing.T) {
	text := func(s string) *string { return &s }
	selection := func(name string) wire.Key {
		return wire.Key{Group: "frond.io", Resource: "trustbundleselections", Name: name}
	}
	bundles := func(p corev1.ClusterTrustBundleProjection) corev1.Pod {
		return corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: projectBundles(p)}}}}
	}
	for name, tt := range map[string]struct {
		pod  corev1.Pod
		want []wire.Key
	}{
		"a bundle by name": {bundles(corev1.ClusterTrustBundleProjection{Name: text("b")}), []wire.Key{bundleKey("b")}},
		"a signer's bundles by labels": {
			bundles(corev1.ClusterTrustBundleProjection{SignerName: text("a.test/s"), LabelSelector: &metav1.LabelSelector{
				MatchLabels:      map[string]string{"b": "2", "a": "1"},
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: metav1.LabelSelectorOpIn, Values: []string{"y", "x"}}},
			}}),
			[]wire.Key{selection("a.test/s a=1,b=2,c in (x,y)")},
		},
		"all of a signer's":     {bundles(corev1.ClusterTrustBundleProjection{SignerName: text("a.test/s"), LabelSelector: &metav1.LabelSelector{}}), []wire.Key{selection("a.test/s ")}},
		"none of a signer's":    {bundles(corev1.ClusterTrustBundleProjection{SignerName: text("a.test/s")}), nil},
		"no signer and no name": {bundles(corev1.ClusterTrustBundleProjection{}), nil},
		"an invalid selector": {bundles(corev1.ClusterTrustBundleProjection{SignerName: text("a.test/s"), LabelSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "c", Operator: "Like"}},
		}}), nil},
		"a pod's certificate names no object": {corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{PodCertificate: &corev1.PodCertificateProjection{SignerName: "a.test/s"}}}},
		}}}}}, nil},
		"claims by name, from a template and for extended resources": {
			corev1.Pod{
				Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{
					{Name: "own", ResourceClaimName: text("shared")},
					{Name: "made", ResourceClaimTemplateName: text("template")},
				}},
				Status: corev1.PodStatus{
					ResourceClaimStatuses: []corev1.PodResourceClaimStatus{
						{Name: "made", ResourceClaimName: text("pod-made-x7k2p")}, {Name: "none"}, {Name: "own", ResourceClaimName: text("shared")},
					},
					ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "pod-extended"},
				},
			},
			[]wire.Key{claimKey("n", "shared"), claimKey("n", "pod-made-x7k2p"), claimKey("n", "pod-extended")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.pod.Namespace, tt.pod.Name = "n", "pod"
			if diff := cmp.Diff(tt.want, references.OfPod(&tt.pod)); diff != "" {
				t.Errorf("refs (-want +got):\n%s", diff)
			}
		})
	}
}
