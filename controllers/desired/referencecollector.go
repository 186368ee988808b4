package desired

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
)

// references collects the keys of what one object needs, each once, in the order found.
type references struct {
	namespace string
	keys      []wire.Key
	seen      map[wire.Key]bool
}

func referencesIn(namespace string) *references {
	return &references{namespace: namespace, seen: map[wire.Key]bool{}}
}

func (r *references) add(resource, namespace, name string) {
	r.addKey(wire.Key{Resource: resource, Namespace: namespace, Name: name})
}

func (r *references) addKey(key wire.Key) {
	if key.Name == "" || r.seen[key] {
		return
	}
	r.seen[key] = true
	r.keys = append(r.keys, key)
}

func (r *references) secret(name string)    { r.add("secrets", r.namespace, name) }
func (r *references) configMap(name string) { r.add("configmaps", r.namespace, name) }
func (r *references) claim(name string)     { r.add("persistentvolumeclaims", r.namespace, name) }

func (r *references) local(ref *corev1.LocalObjectReference) {
	if ref != nil {
		r.secret(ref.Name)
	}
}

// foreign adds the secret of a persistent volume, which may name another namespace than the claim's.
func (r *references) foreign(ref *corev1.SecretReference) {
	if ref == nil {
		return
	}
	namespace := ref.Namespace
	if namespace == "" {
		namespace = r.namespace
	}
	r.add("secrets", namespace, ref.Name)
}

// podRefs returns what a kubelet needs to run the pod. The CA bundle kube-root-ca.crt is among a pod's projected volumes
// when it wants a token. What these objects need in turn is accountRefs, claimRefs and volumeRefs. A mirror pod, which the node has made
// itself, needs nothing of the cloud's; Kubernetes' Node authorizer judges it so too.
func podRefs(pod *corev1.Pod) []wire.Key {
	if isMirror(pod) {
		return nil
	}
	r := referencesIn(pod.Namespace)
	r.add("serviceaccounts", pod.Namespace, pod.Spec.ServiceAccountName)
	for i := range pod.Spec.ImagePullSecrets {
		r.local(&pod.Spec.ImagePullSecrets[i])
	}
	for i := range pod.Spec.InitContainers {
		r.container(pod.Spec.InitContainers[i].Env, pod.Spec.InitContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Containers {
		r.container(pod.Spec.Containers[i].Env, pod.Spec.Containers[i].EnvFrom)
	}
	for i := range pod.Spec.EphemeralContainers {
		r.container(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range pod.Spec.Volumes {
		r.volume(pod.Name, &pod.Spec.Volumes[i])
	}
	r.resourceClaims(pod)
	return r.keys
}

func (r *references) container(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for i := range env {
		if v := env[i].ValueFrom; v != nil {
			if v.ConfigMapKeyRef != nil {
				r.configMap(v.ConfigMapKeyRef.Name)
			}
			if v.SecretKeyRef != nil {
				r.secret(v.SecretKeyRef.Name)
			}
		}
	}
	for i := range from {
		if from[i].ConfigMapRef != nil {
			r.configMap(from[i].ConfigMapRef.Name)
		}
		if from[i].SecretRef != nil {
			r.secret(from[i].SecretRef.Name)
		}
	}
}

// volume follows each source that names an object. One volume has one source.
func (r *references) volume(pod string, v *corev1.Volume) {
	switch {
	case v.ConfigMap != nil:
		r.configMap(v.ConfigMap.Name)
	case v.Secret != nil:
		r.secret(v.Secret.SecretName)
	case v.Projected != nil:
		r.projected(v.Projected.Sources)
	case v.PersistentVolumeClaim != nil:
		r.claim(v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		r.claim(pod + "-" + v.Name) // the claim's name is fixed by the API
	case v.CSI != nil:
		r.local(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		r.secret(v.AzureFile.SecretName)
	case v.CephFS != nil:
		r.local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		r.local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		r.local(v.FlexVolume.SecretRef)
	case v.ISCSI != nil:
		r.local(v.ISCSI.SecretRef)
	case v.RBD != nil:
		r.local(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		r.local(v.ScaleIO.SecretRef)
	case v.StorageOS != nil:
		r.local(v.StorageOS.SecretRef)
	}
}

func (r *references) projected(sources []corev1.VolumeProjection) {
	for i := range sources {
		if sources[i].ConfigMap != nil {
			r.configMap(sources[i].ConfigMap.Name)
		}
		if sources[i].Secret != nil {
			r.secret(sources[i].Secret.Name)
		}
		if sources[i].ClusterTrustBundle != nil {
			r.trustBundles(sources[i].ClusterTrustBundle)
		}
	}
}

// accountRefs returns a service account's image pull secrets.
func accountRefs(account *corev1.ServiceAccount) []wire.Key {
	r := referencesIn(account.Namespace)
	for i := range account.ImagePullSecrets {
		r.local(&account.ImagePullSecrets[i])
	}
	return r.keys
}

// claimRefs returns the claim's volume. A claim that the volume does not name in turn is no reference: only a bound pair
// may lead to the secrets of a volume.
func claimRefs(claim *corev1.PersistentVolumeClaim) []wire.Key {
	r := referencesIn(claim.Namespace)
	if claim.Status.Phase == corev1.ClaimBound {
		r.add("persistentvolumes", "", claim.Spec.VolumeName)
	}
	return r.keys
}

// volumeRefs returns the secrets of a persistent volume that a node mounts with; those of the controller stay away.
func volumeRefs(volume *corev1.PersistentVolume) []wire.Key {
	if volume.Spec.ClaimRef == nil {
		return nil
	}
	r := referencesIn(volume.Spec.ClaimRef.Namespace)
	s := &volume.Spec.PersistentVolumeSource
	switch {
	case s.CSI != nil:
		r.foreign(s.CSI.NodePublishSecretRef)
		r.foreign(s.CSI.NodeStageSecretRef)
		r.foreign(s.CSI.NodeExpandSecretRef)
	case s.AzureFile != nil:
		ref := corev1.SecretReference{Name: s.AzureFile.SecretName}
		if s.AzureFile.SecretNamespace != nil {
			ref.Namespace = *s.AzureFile.SecretNamespace
		}
		r.foreign(&ref)
	case s.CephFS != nil:
		r.foreign(s.CephFS.SecretRef)
	case s.Cinder != nil:
		r.foreign(s.Cinder.SecretRef)
	case s.FlexVolume != nil:
		r.foreign(s.FlexVolume.SecretRef)
	case s.ISCSI != nil:
		r.foreign(s.ISCSI.SecretRef)
	case s.RBD != nil:
		r.foreign(s.RBD.SecretRef)
	case s.ScaleIO != nil:
		r.foreign(s.ScaleIO.SecretRef)
	case s.StorageOS != nil:
		if ref := s.StorageOS.SecretRef; ref != nil {
			r.foreign(&corev1.SecretReference{Name: ref.Name, Namespace: ref.Namespace})
		}
	}
	return r.keys
}
