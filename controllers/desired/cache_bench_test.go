package desired_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/desired/payload"
	"github.com/frond-edge/frond/controllers/podcache"
)

// typicalPod returns a pod of a Deployment with a status, as the apiserver serves it.
func typicalPod(i int) *corev1.Pod {
	now := metav1.NewTime(time.Unix(1700000000+int64(i), 0))
	name := fmt.Sprintf("web-7c9f6bd5d4-%05d", i)
	seconds, yes, mode := int64(300), true, int32(420)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, GenerateName: "web-7c9f6bd5d4-", Namespace: "shop", UID: types.UID(fmt.Sprintf("2d9b7c1e-5a43-4e0f-9f0b-%012d", i)),
			ResourceVersion: fmt.Sprint(100000 + i), CreationTimestamp: now, Labels: map[string]string{"app": "web", "tier": "front", "pod-template-hash": "7c9f6bd5d4"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7c9f6bd5d4", UID: "0b1d2c3e-5a43-4e0f-9f0b-000000000001", Controller: &yes, BlockOwnerDeletion: &yes}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: fieldsOfSize(900)},
				{Manager: "cloudcore", Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", Subresource: "status", FieldsV1: fieldsOfSize(1100)},
			},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("gw-%06d", i/10), ServiceAccountName: "default", DeprecatedServiceAccount: "default", SchedulerName: "default-scheduler",
			RestartPolicy: "Always", DNSPolicy: "ClusterFirst", TerminationGracePeriodSeconds: &seconds, EnableServiceLinks: &yes, SecurityContext: &corev1.PodSecurityContext{},
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds},
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &seconds},
			},
			Containers: []corev1.Container{{
				Name: "web", Image: "registry.example.com/shop/web:v1.42.0", ImagePullPolicy: "IfNotPresent", TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File",
				Env:          []corev1.EnvVar{{Name: "LOG_LEVEL", Value: "info"}, {Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nodeName"}}}},
				Ports:        []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: "TCP"}},
				VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/web"}, {Name: "kube-api-access-x2k8q", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
			}},
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "web"}, DefaultMode: &mode}}},
				{Name: "kube-api-access-x2k8q", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
					{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
				}}}},
			},
		},
		Status: corev1.PodStatus{
			Phase: "Running", HostIP: "10.0.0.1", PodIP: "10.1.0.1", HostIPs: []corev1.HostIP{{IP: "10.0.0.1"}}, PodIPs: []corev1.PodIP{{IP: "10.1.0.1"}}, StartTime: &now, QOSClass: "BestEffort",
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "web", Ready: true, Started: &yes, Image: "registry.example.com/shop/web:v1.42.0", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
				ImageID:     "registry.example.com/shop/web@sha256:3f4c1a7d5b0e2c9f8a6d4b3e1f0c9d8a7b6e5f4c3d2e1f0a9b8c7d6e5f4a3b2c",
				ContainerID: fmt.Sprintf("containerd://%064d", i),
			}},
		},
	}
	for _, kind := range []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: "True", LastTransitionTime: now})
	}
	return pod
}

func fieldsOfSize(n int) *metav1.FieldsV1 {
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = 'f'
	}
	return metav1.NewFieldsV1(`{"` + string(raw) + `":{}}`)
}

// BenchmarkPodCache measures the heap that a pod takes in an informer's store with the indexes that cloudcore has, decoded
// from what the apiserver sends: whole, without managedFields, and packed.
func BenchmarkPodCache(b *testing.B) {
	const pods = 20_000
	indexers := desiredPodIndexers()
	for name, transform := range map[string]toolscache.TransformFunc{
		"whole":    func(o any) (any, error) { return o, nil },
		"stripped": cache.TransformStripManagedFields(),
		"packed":   podcache.Transform,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				before := heapInUse()
				store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, indexers)
				for i := range pods {
					o, err := transform(receivedPod(b, i))
					if err != nil {
						b.Fatal(err)
					}
					if err := store.Add(o); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(heapInUse()-before)/pods, "B/pod")
				runtime.KeepAlive(store)
			}
		})
	}
}

// desiredPodIndexers returns the indexes of pods by namespace and by node.
func desiredPodIndexers() toolscache.Indexers {
	for _, k := range kinds.Table(true) {
		if k.Resource == "pods" {
			indexers := k.Indexers()
			indexers[toolscache.NamespaceIndex] = toolscache.MetaNamespaceIndexFunc
			return indexers
		}
	}
	return nil
}

// receivedPod decodes a typical pod, as an informer does.
func receivedPod(b *testing.B, i int) *corev1.Pod {
	b.Helper()
	data, err := typicalPod(i).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	decoded := &corev1.Pod{}
	if err := decoded.Unmarshal(data); err != nil {
		b.Fatal(err)
	}
	return decoded
}

// BenchmarkPodRead measures what packing costs: a pod that is packed when it arrives, one that is unpacked to be read, and,
// beside them, its digest.
func BenchmarkPodRead(b *testing.B) {
	pod := receivedPod(b, 1)
	packed, err := podcache.Pack(pod)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("pack", func(b *testing.B) {
		for b.Loop() {
			if _, err := podcache.Pack(pod); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unpack", func(b *testing.B) {
		for b.Loop() {
			if _, err := packed.Whole(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("digest", func(b *testing.B) {
		for b.Loop() {
			shallow := *pod
			if _, err := payload.New(&shallow, false); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
