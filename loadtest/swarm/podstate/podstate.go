// Package podstate is the status machine of a simulated gateway: what a kubelet would report of a pod whose images are there and whose
// containers start at once and never fail. It is pure: the caller has the clock and sends the reports.
package podstate

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/podstatus"
	"github.com/frond-edge/frond/api/wire"
)

// Pod is what the machine knows of a pod.
type Pod struct {
	Key wire.Key
	UID string
	// Deleted says that Kubernetes waits for the gateway to end the pod.
	Deleted bool
	// Started is when its containers started, in whole seconds, as Kubernetes stores times.
	Started    time.Time
	containers []container
	init       []container
	observed   int64
}

type container struct{ name, image string }

// desired are the fields of a pod that the machine reads.
type desired struct {
	Metadata struct {
		Name              string       `json:"name"`
		Namespace         string       `json:"namespace"`
		UID               string       `json:"uid"`
		Generation        int64        `json:"generation"`
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NodeName       string             `json:"nodeName"`
		InitContainers []desiredContainer `json:"initContainers"`
		Containers     []desiredContainer `json:"containers"`
	} `json:"spec"`
}

type desiredContainer struct {
	Name  string `json:"name"`
	Image string `json:"image"`
}

// Parse reads a pod as the cloud sends it. started is when it starts, unless it has: the caller keeps that of the pod before with this UID.
func Parse(object []byte, started time.Time) (Pod, error) {
	var d desired
	if err := json.Unmarshal(object, &d); err != nil {
		return Pod{}, fmt.Errorf("pod: %w", err)
	}
	p := Pod{
		Key: wire.Key{Resource: "pods", Namespace: d.Metadata.Namespace, Name: d.Metadata.Name}, UID: d.Metadata.UID,
		Deleted: d.Metadata.DeletionTimestamp != nil, Started: started.UTC().Truncate(time.Second), observed: d.Metadata.Generation,
	}
	for _, c := range d.Spec.Containers {
		p.containers = append(p.containers, container{c.Name, c.Image})
	}
	for _, c := range d.Spec.InitContainers {
		p.init = append(p.init, container{c.Name, c.Image})
	}
	return p, nil
}

// podNetwork is the network of the pods' addresses, of those that RFC 2544 reserves for benchmarks: nothing answers there. Two pods may have
// the same one.
const podNetwork = "198.18.%d.%d"

func (p Pod) address() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.UID)) // a hash never fails
	const octet, first = 254, 1
	sum := h.Sum32()
	return fmt.Sprintf(podNetwork, sum/octet%octet+first, sum%octet+first)
}

// Status returns the status of the running pod. host is the address of its gateway.
func (p Pod) Status(host string) corev1.PodStatus {
	started := metav1.NewTime(p.Started)
	status := corev1.PodStatus{
		ObservedGeneration: p.observed, Phase: corev1.PodRunning, StartTime: &started, QOSClass: corev1.PodQOSBestEffort,
		HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, PodIP: p.address(), PodIPs: []corev1.PodIP{{IP: p.address()}},
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: started})
	}
	yes := true
	for _, c := range p.containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: c.name, Image: c.image, ImageID: c.image, ContainerID: "loadtest://" + p.UID + "/" + c.name, Ready: true, Started: &yes,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}},
		})
	}
	no := false
	for _, c := range p.init {
		status.InitContainerStatuses = append(status.InitContainerStatuses, corev1.ContainerStatus{
			Name: c.name, Image: c.image, ImageID: c.image, ContainerID: "loadtest://" + p.UID + "/" + c.name, Ready: true, Started: &no,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: started, FinishedAt: started}},
		})
	}
	return status
}

// Report returns the report of the pod: its status, or, if it is deleted, its end.
func (p Pod) Report(host string, now time.Time) (wire.Message, error) {
	m := wire.Message{Key: p.Key, Op: wire.Apply, UID: p.UID, Time: now}
	if p.Deleted {
		m.Op = wire.Delete
		return m, nil
	}
	var err error
	m.Object, err = json.Marshal(corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Key.Name, Namespace: p.Key.Namespace},
		Status:     p.Status(host),
	})
	if err != nil {
		return m, fmt.Errorf("report pod %s: %w", p.Key.Human(), err)
	}
	return m, nil
}

// Digest returns the pod as a request for what the cloud has already names it.
func (p Pod) Digest(host string) (wire.PodDigest, error) {
	digest, err := podstatus.Digest(p.Status(host))
	if err != nil {
		return wire.PodDigest{}, fmt.Errorf("pod %s: %w", p.Key.Human(), err)
	}
	return wire.PodDigest{Namespace: p.Key.Namespace, Name: p.Key.Name, UID: p.UID, Digest: digest}, nil
}
