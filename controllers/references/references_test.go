package references_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

func coreKey(resource, namespace, name string) wire.Key {
	return wire.Key{Resource: resource, Namespace: namespace, Name: name}
}

func TestPodRefs_FollowEveryPath(t *testing.T) {
	env := func(secret string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", ValueFrom: &corev1.EnvVarSource{
			SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}},
		}}}
	}
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	local := func(name string) *corev1.LocalObjectReference { r := ref(name); return &r }
	volume := func(source corev1.VolumeSource) corev1.Volume { return corev1.Volume{Name: "v", VolumeSource: source} }
	for name, tt := range map[string]struct {
		spec corev1.PodSpec
		want []wire.Key
	}{
		"nothing": {},
		"account and pull secrets": {
			spec: corev1.PodSpec{ServiceAccountName: "sa", ImagePullSecrets: []corev1.LocalObjectReference{ref("pull"), ref("pull"), ref("")}},
			want: []wire.Key{coreKey("serviceaccounts", "n", "sa"), coreKey("secrets", "n", "pull")},
		},
		"env of all three kinds of containers": {
			spec: corev1.PodSpec{
				InitContainers:      []corev1.Container{{Env: env("init")}},
				Containers:          []corev1.Container{{Env: env("main")}},
				EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Env: env("debug")}}},
			},
			want: []wire.Key{coreKey("secrets", "n", "init"), coreKey("secrets", "n", "main"), coreKey("secrets", "n", "debug")},
		},
		"envFrom and a config map's key": {
			spec: corev1.PodSpec{Containers: []corev1.Container{{
				EnvFrom: []corev1.EnvFromSource{
					{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("a")}},
					{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("b")}},
				},
				Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{
					ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("c")},
				}}},
			}}},
			want: []wire.Key{coreKey("configmaps", "n", "c"), coreKey("configmaps", "n", "a"), coreKey("secrets", "n", "b")},
		},
		"volumes": {
			spec: corev1.PodSpec{Volumes: []corev1.Volume{
				volume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("cm")}}),
				volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}),
				volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("kube-root-ca.crt")}},
					{Secret: &corev1.SecretProjection{LocalObjectReference: ref("p")}},
				}}}),
				volume(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}),
				volume(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}),
				volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}}),
				volume(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local("iscsi")}}),
				volume(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
			}},
			want: []wire.Key{
				coreKey("configmaps", "n", "cm"), coreKey("secrets", "n", "s"), coreKey("configmaps", "n", "kube-root-ca.crt"),
				coreKey("secrets", "n", "p"), coreKey("persistentvolumeclaims", "n", "c"), coreKey("persistentvolumeclaims", "n", "pod-v"),
				coreKey("secrets", "n", "csi"), coreKey("secrets", "n", "iscsi"),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "pod"}, Spec: tt.spec}
			if diff := cmp.Diff(tt.want, references.OfPod(pod)); diff != "" {
				t.Errorf("refs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVolumeRefs_NodeSecretsOnly(t *testing.T) {
	volume := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "n", Name: "c"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			NodePublishSecretRef:       &corev1.SecretReference{Name: "publish", Namespace: "storage"},
			NodeStageSecretRef:         &corev1.SecretReference{Name: "stage"},
			ControllerPublishSecretRef: &corev1.SecretReference{Name: "controller", Namespace: "storage"},
		}},
	}}
	want := []wire.Key{coreKey("secrets", "storage", "publish"), coreKey("secrets", "n", "stage")}
	if diff := cmp.Diff(want, references.OfVolume(volume)); diff != "" {
		t.Errorf("refs (-want +got):\n%s", diff)
	}
	volume.Spec.ClaimRef = nil
	if got := references.OfVolume(volume); got != nil {
		t.Errorf("an unclaimed volume leads to %v", got)
	}
	claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}}
	if got := references.OfClaim(claim); got != nil {
		t.Errorf("a claim that is not bound leads to %v", got)
	}
	claim.Status.Phase = corev1.ClaimBound
	if diff := cmp.Diff([]wire.Key{coreKey("persistentvolumes", "", "v")}, references.OfClaim(claim)); diff != "" {
		t.Errorf("refs (-want +got):\n%s", diff)
	}
}
