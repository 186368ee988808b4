package references

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
)

// referenceCollector collects the keys of what one object needs, each once, in the order found.
type referenceCollector struct {
	namespace string
	keys      []wire.Key
	seen      map[wire.Key]bool
}

func newReferenceCollector(namespace string) *referenceCollector {
	return &referenceCollector{namespace: namespace, seen: map[wire.Key]bool{}}
}

func (r *referenceCollector) addObject(resource, namespace, name string) {
	r.addKey(wire.Key{Resource: resource, Namespace: namespace, Name: name})
}

func (r *referenceCollector) addKey(key wire.Key) {
	if key.Name == "" || r.seen[key] {
		return
	}
	r.seen[key] = true
	r.keys = append(r.keys, key)
}

func (r *referenceCollector) addSecret(name string)    { r.addObject("secrets", r.namespace, name) }
func (r *referenceCollector) addConfigMap(name string) { r.addObject("configmaps", r.namespace, name) }

func (r *referenceCollector) addClaim(name string) {
	r.addObject("persistentvolumeclaims", r.namespace, name)
}

func (r *referenceCollector) addLocalSecret(ref *corev1.LocalObjectReference) {
	if ref != nil {
		r.addSecret(ref.Name)
	}
}

// addVolumeSecret adds the secret of a persistent volume, which may name another namespace than the claim's.
func (r *referenceCollector) addVolumeSecret(ref *corev1.SecretReference) {
	if ref == nil {
		return
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = r.namespace
	}
	r.addObject("secrets", namespace, ref.Name)
}

// OfPod returns the keys that a kubelet needs to run the pod. The CA bundle kube-root-ca.crt is among a pod's
// projected volumes when it wants a token. accountRefs, claimRefs and volumeRefs return what these objects need in
// turn. A mirror pod, which the node itself creates, needs no object of the cloud; Kubernetes' Node authorizer has the same rule.
func OfPod(pod *corev1.Pod) []wire.Key {
	if IsMirror(pod) {
		return nil
	}
	r := newReferenceCollector(pod.Namespace)
	r.addObject("serviceaccounts", pod.Namespace, pod.Spec.ServiceAccountName)
	for i := range pod.Spec.ImagePullSecrets {
		r.addLocalSecret(&pod.Spec.ImagePullSecrets[i])
	}
	for i := range pod.Spec.InitContainers {
		r.addContainer(pod.Spec.InitContainers[i].Env, pod.Spec.InitContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Containers {
		r.addContainer(pod.Spec.Containers[i].Env, pod.Spec.Containers[i].EnvFrom)
	}
	for i := range pod.Spec.EphemeralContainers {
		r.addContainer(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Volumes {
		r.addVolume(pod.Name, &pod.Spec.Volumes[i])
	}
	r.addResourceClaims(pod)
	return r.keys
}

func (r *referenceCollector) addContainer(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for i := range env {
		if v := env[i].ValueFrom; v != nil {
			if v.ConfigMapKeyRef != nil {
				r.addConfigMap(v.ConfigMapKeyRef.Name)
			}
			if v.SecretKeyRef != nil {
				r.addSecret(v.SecretKeyRef.Name)
			}
		}
	}
	for i := range from {
		if from[i].ConfigMapRef != nil {
			r.addConfigMap(from[i].ConfigMapRef.Name)
		}
		if from[i].SecretRef != nil {
			r.addSecret(from[i].SecretRef.Name)
		}
	}
}

// addVolume adds the object that a volume's source names. One volume has one source.
func (r *referenceCollector) addVolume(pod string, v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		r.addConfigMap(v.ConfigMap.Name)
	case v.Secret != nil:
		r.addSecret(v.Secret.SecretName)
	case v.Projected != nil:
		r.addProjected(v.Projected.Sources)
	case v.PersistentVolumeClaim != nil:
		r.addClaim(v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		r.addClaim(pod + "-" + v.Name) // the claim's name is fixed by the API
	case v.CSI != nil:
		r.addLocalSecret(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		r.addSecret(v.AzureFile.SecretName)
	case v.CephFS != nil:
		r.addLocalSecret(v.CephFS.SecretRef)
	case v.Cinder != nil:
		r.addLocalSecret(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		r.addLocalSecret(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		r.addLocalSecret(v.ISCSI.SecretRef)
	case v.RBD != nil:
		r.addLocalSecret(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		r.addLocalSecret(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		r.addLocalSecret(v.StorageOS.SecretRef)
	}
}

func (r *referenceCollector) addProjected(sources []corev1.VolumeProjection) {
	for i := range sources {
		if sources[i].ConfigMap != nil {
			r.addConfigMap(sources[i].ConfigMap.Name)
		}
		if sources[i].Secret != nil {
			r.addSecret(sources[i].Secret.Name)
		}
		if sources[i].ClusterTrustBundle != nil {
			r.addTrustBundles(sources[i].ClusterTrustBundle)
		}
	}
}

// OfServiceAccount returns a service account's image pull secrets.
func OfServiceAccount(account *corev1.ServiceAccount) []wire.Key {
	r := newReferenceCollector(account.Namespace)
	for i := range account.ImagePullSecrets {
		r.addLocalSecret(&account.ImagePullSecrets[i])
	}
	return r.keys
}

// OfClaim returns the claim's volume. A claim that the volume does not name in turn is no reference: only a bound
// pair may lead to the secrets of a volume.
func OfClaim(claim *corev1.PersistentVolumeClaim) []wire.Key {
	r := newReferenceCollector(claim.Namespace)
	if claim.Status.Phase == corev1.ClaimBound {
		r.addObject("persistentvolumes", "", claim.Spec.VolumeName)
	}
	return r.keys
}

// OfVolume returns the secrets of a persistent volume that a node needs to mount it; those of the controller are left out.
func OfVolume(volume *corev1.PersistentVolume) []wire.Key {
	if volume.Spec.ClaimRef == nil {
		return nil
	}
	r := newReferenceCollector(volume.Spec.ClaimRef.Namespace)
	s := &volume.Spec.PersistentVolumeSource
	switch {
	case s.CSI != nil:
		r.addVolumeSecret(s.CSI.NodePublishSecretRef)
		r.addVolumeSecret(s.CSI.NodeStageSecretRef)
		r.addVolumeSecret(s.CSI.NodeExpandSecretRef)
	case s.AzureFile != nil:
		ref := corev1.SecretReference{Name: s.AzureFile.SecretName}
		if s.AzureFile.SecretNamespace != nil {
			ref.Namespace = *s.AzureFile.SecretNamespace
		}
		r.addVolumeSecret(&ref)
	case s.CephFS != nil:
		r.addVolumeSecret(s.CephFS.SecretRef)
	case s.Cinder != nil:
		r.addVolumeSecret(s.Cinder.SecretRef)
	case s.FlexVolume != nil:
		r.addVolumeSecret(s.FlexVolume.SecretRef)
	case s.ISCSI != nil:
		r.addVolumeSecret(s.ISCSI.SecretRef)
	case s.RBD != nil:
		r.addVolumeSecret(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		r.addVolumeSecret(s.ScaleIO.SecretRef)
	case s.StorageOS != nil:
		if ref := s.StorageOS.SecretRef; ref != nil {
			r.addVolumeSecret(&corev1.SecretReference{Name: ref.Name, Namespace: ref.Namespace})
		}
	}
	return r.keys
}
