package references

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
)

// addTrustBundles adds what a projection of trust bundles names: one bundle, or a signer with labels. The API allows
// one of the two.
func (r *referenceCollector) addTrustBundles(p *corev1.ClusterTrustBundleProjection) {
	if p.Name != nil {
		r.addKey(wire.Key{Group: CertificatesGroup, Resource: TrustBundlesResource, Name: *p.Name})
		return
	}
	if p.SignerName == nil {
		return
	}
	if key, ok := selectionKey(*p.SignerName, p.LabelSelector); ok {
		r.addKey(key)
	}
}

// addResourceClaims adds a pod's device claims: those it names itself, those made for it from templates, and the one
// that the scheduler made for its extended resources. Kubernetes' Node authorizer lets the pod's node read the same claims.
func (r *referenceCollector) addResourceClaims(pod *corev1.Pod) {
	add := func(name *string) {
		if name != nil {
			r.addKey(wire.Key{Group: ResourceGroup, Resource: ClaimsResource, Namespace: pod.Namespace, Name: *name})
		}
	}
	for i := range pod.Spec.ResourceClaims {
		add(pod.Spec.ResourceClaims[i].ResourceClaimName)
	}
	for i := range pod.Status.ResourceClaimStatuses {
		add(pod.Status.ResourceClaimStatuses[i].ResourceClaimName)
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil {
		add(&extended.ResourceClaimName)
	}
}
