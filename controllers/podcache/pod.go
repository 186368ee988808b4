// Package podcache keeps pods in memory in a packed form: their protobuf encoding, and beside it the few facts that
// replicas ask of all pods. A typical pod takes a third of the memory of a *corev1.Pod.
//
// New makes the cache. Its informer of pods holds *Pod and hands it to event handlers: a type of its own, so that no reader
// can mistake a packed pod for a whole one with empty fields. Follow and Of read it; Get of the cache returns whole pods. A
// whole pod equals the one that was packed in each field except managedFields, which no part of cloudcore reads and no node
// gets.
package podcache

import (
	"bytes"
	"fmt"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/controllers/references"
)

// Pod is a packed pod. It never changes.
type Pod struct {
	// Many pods share each of these strings, which are in memory once.
	namespace, node, account unique.Handle[string]
	// name, uid and version are not parts of encoded: who keeps one of them would keep all of it.
	name, uid, version string
	// addresses are the pod's IPs, separated by spaces.
	addresses string
	// encoded is the protobuf encoding of the whole pod.
	encoded []byte
	// created is when the pod was created, in seconds since 1970; 0 if that is not known.
	created                    int64
	hostNetwork, ended, mirror bool
	markedNotReady             bool
}

// Pack packs a pod, which it deprives of its managedFields.
func Pack(pod *corev1.Pod) (*Pod, error) {
	pod.ManagedFields = nil
	encoded, err := pod.Marshal()
	if err != nil {
		return nil, fmt.Errorf("pack pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	addresses := make([]string, 0, len(pod.Status.PodIPs))
	for _, ip := range pod.Status.PodIPs {
		addresses = append(addresses, ip.IP)
	}
	var created int64
	if !pod.CreationTimestamp.IsZero() {
		created = pod.CreationTimestamp.Unix()
	}
	return &Pod{
		created: created, namespace: unique.Make(pod.Namespace), node: unique.Make(pod.Spec.NodeName), account: unique.Make(pod.Spec.ServiceAccountName),
		name: strings.Clone(pod.Name), uid: strings.Clone(string(pod.UID)), version: strings.Clone(pod.ResourceVersion),
		addresses: strings.Join(addresses, " "), encoded: encoded, hostNetwork: pod.Spec.HostNetwork,
		ended: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed, mirror: references.IsMirror(pod),
		markedNotReady: isMarkedNotReady(pod),
	}, nil
}

// Of returns what an informer of pods holds as a packed pod; ok is false for anything else. A cache that New did not make
// holds whole pods, which Of packs.
func Of(object any) (p *Pod, ok bool) {
	switch o := object.(type) {
	case *Pod:
		return o, true
	case *corev1.Pod:
		shallow := *o // the caller's pod keeps its managedFields
		p, err := Pack(&shallow)
		return p, err == nil
	}
	return nil, false
}

// Whole decodes the pod. The caller owns it.
func (p *Pod) Whole() (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(p.encoded); err != nil {
		return nil, fmt.Errorf("unpack pod %s/%s: %w", p.Namespace(), p.name, err)
	}
	return pod, nil
}

// GetObjectMeta implements metav1.ObjectMetaAccessor for client-go's stores, which ask for names and versions. It has the
// pod's identity and age only.
func (p *Pod) GetObjectMeta() metav1.Object {
	m := &metav1.ObjectMeta{Namespace: p.Namespace(), Name: p.name, UID: types.UID(p.uid), ResourceVersion: p.version}
	if p.created != 0 {
		m.CreationTimestamp = metav1.Unix(p.created, 0)
	}
	return m
}

// Namespace returns the pod's namespace.
func (p *Pod) Namespace() string { return p.namespace.Value() }

// Name returns the pod's name.
func (p *Pod) Name() string { return p.name }

// UID returns the pod's UID.
func (p *Pod) UID() string { return p.uid }

// Version returns the pod's resourceVersion.
func (p *Pod) Version() string { return p.version }

// Node returns the name of the node that the pod is bound to, "" for none.
func (p *Pod) Node() string { return p.node.Value() }

// Account returns the name of the pod's service account.
func (p *Pod) Account() string { return p.account.Value() }

// Addresses returns the pod's IPs.
func (p *Pod) Addresses() []string { return strings.Fields(p.addresses) }

// HostNetwork reports whether the pod uses the network of its node.
func (p *Pod) HostNetwork() bool { return p.hostNetwork }

// Ended reports whether the pod has succeeded or failed.
func (p *Pod) Ended() bool { return p.ended }

// Mirror reports whether the pod is the API's copy of a static pod.
func (p *Pod) Mirror() bool { return p.mirror }

// MarkedNotReady reports whether somebody else than the pod's kubelet set it to not ready: kube-controller-manager does so when it loses the node.
func (p *Pod) MarkedNotReady() bool { return p.markedNotReady }

// isMarkedNotReady finds a pod whose containers are ready and that is not, without a reason. A kubelet gives one: ContainersNotReady,
// ReadinessGatesNotReady, PodCompleted (GeneratePodReadyCondition of Kubernetes); MarkPodsNotReady of kube-controller-manager only changes the status.
func isMarkedNotReady(pod *corev1.Pod) bool {
	var ready, containers corev1.PodCondition
	for _, c := range pod.Status.Conditions {
		switch c.Type { //nolint:exhaustive // the others say nothing here
		case corev1.PodReady:
			ready = c
		case corev1.ContainersReady:
			containers = c
		}
	}
	return containers.Status == corev1.ConditionTrue && ready.Status == corev1.ConditionFalse && ready.Reason == ""
}

// MayHaveAnnotation reports whether a pod may have an annotation. It has not if the answer is false; if it is true, the
// whole pod tells.
func (p *Pod) MayHaveAnnotation(key string) bool { return bytes.Contains(p.encoded, []byte(key)) }
