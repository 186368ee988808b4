package desired_test

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

func coreKey(resource, namespace, name string) wire.Key {
	return wire.Key{Resource: resource, Namespace: namespace, Name: name}
}

func bundleKey(name string) wire.Key {
	return wire.Key{Group: "certificates.k8s.io", Resource: "clustertrustbundles", Name: name}
}

func projectBundles(p corev1.ClusterTrustBundleProjection) corev1.VolumeSource {
	p.Path = "ca.pem"
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ClusterTrustBundle: &p}}}}
}

func projectSigner(signer string, matching *metav1.LabelSelector) corev1.VolumeSource {
	return projectBundles(corev1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: matching})
}
