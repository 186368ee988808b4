// Package payload makes the form in which an object is published to a node, and the digest by which a change that concerns
// the node is told from one that does not.
package payload

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
)

// Payload is an object in the form in which it is published to a node.
type Payload struct {
	UID, Version string
	// Digest is the same for two states of one object that do not differ for the node.
	Digest         string
	DeletionReason wire.DeletionReason
	// ForceDeleted: the object removes a pod from its node.
	ForceDeleted bool
	// Object is the JSON; nil until Encode if the digest covers less than the whole object.
	Object []byte
	// source is the object that Encode encodes; nil once that is done.
	source client.Object
}

// Encoded reports whether Object is set.
func (p *Payload) Encoded() bool { return p.source == nil }

// New digests the parts of an object that concern its node. The object is a shallow copy of the caller's: its
// metadata and status fields may be set; what they point to belongs to the cache and must not change.
//
// Versions and managedFields are not digested. Of a pod's status only the parts are digested that others than the
// kubelet write, so that the node's own reports do not return to it; of a Node's status only the attached volumes; of a
// Device's only what its users write, of a NodeTask's nothing. For a node other than their own (abroad), which only reads them, the whole object is
// digested.
func New(o client.Object, abroad bool) (Payload, error) {
	p := Payload{UID: string(o.GetUID()), Version: o.GetResourceVersion()}
	o.SetManagedFields(nil)
	reduced := o
	switch o := o.(type) {
	case *unstructured.Unstructured:
		switch {
		case isDevice(o):
			withoutReports(o)
		case isTask(o):
			delete(o.Object, "status") // the gateway has reported all of it
		}
		reduced = ShallowCopy(o)
		if isDevice(o) {
			reduced.SetGeneration(0) // it counts changes of the status, too
		}
	case *corev1.Pod:
		if abroad {
			p.DeletionReason = wire.DeletionOfCopy
			break
		}
		pod := *o
		pod.Status = cloudStatus(&o.Status)
		p.DeletionReason, p.ForceDeleted = DeletionReason(o), ForceDeleted(o)
		reduced = &pod
	case *corev1.Node:
		if abroad {
			break
		}
		node := *o
		node.Status = corev1.NodeStatus{VolumesAttached: o.Status.VolumesAttached}
		reduced = &node
	}
	reduced.SetResourceVersion("")
	data, err := json.Marshal(reduced)
	if err != nil {
		return Payload{}, fmt.Errorf("encode: %w", err)
	}
	p.Digest = digestOf(data)
	if reduced == o {
		p.Object = withVersion(data, p.Version)
	} else {
		p.source = o
	}
	return p, nil
}

// OfStatic returns the payload of an object that is not a Kubernetes object.
func OfStatic(object []byte) Payload {
	digest := digestOf(object)
	return Payload{Version: digest, Digest: digest, Object: object}
}

// Snapshot returns the marker that ends the first publication of all that a node needs.
func Snapshot() *Payload {
	return &Payload{Version: "1", Digest: "1", Object: []byte(`{"apiVersion":"frond.io/v1","kind":"Snapshot","metadata":{"name":"complete"}}`)}
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]) // 128 bits: no two states of one object collide
}

// Encode makes the whole object's JSON if New has not. Most reports of a node change a pod's status but not its
// digest, so encoding waits until the object is really published.
func (p *Payload) Encode() error {
	if p.source == nil {
		return nil
	}
	data, err := json.Marshal(p.source)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	p.Object, p.source = data, nil
	return nil
}

// withVersion inserts the resourceVersion into JSON that was made without one: cheaper than encoding a large object
// twice. The first "metadata" is the object's own, as the encoder writes kind and apiVersion before it and nothing else.
func withVersion(data []byte, version string) []byte {
	const open = `"metadata":{`
	at := bytes.Index(data, []byte(open))
	if at < 0 || version == "" {
		return data
	}
	at += len(open)
	field := fmt.Appendf(nil, `"resourceVersion":%q`, version)
	if data[at] != '}' {
		field = append(field, ',')
	}
	out := make([]byte, 0, len(data)+len(field))
	out = append(out, data[:at]...)
	out = append(out, field...)
	return append(out, data[at:]...)
}

// cloudStatus returns the part of a pod's status that the kubelet does not write: conditions of schedulers, gates and
// evictors, claims, and a final phase that the cloud has set.
func cloudStatus(s *corev1.PodStatus) corev1.PodStatus {
	out := corev1.PodStatus{
		NominatedNodeName:                    s.NominatedNodeName,
		ResourceClaimStatuses:                s.ResourceClaimStatuses,
		ExtendedResourceClaimStatus:          s.ExtendedResourceClaimStatus,
		NodeAllocatableResourceClaimStatuses: s.NodeAllocatableResourceClaimStatuses,
	}
	if s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed {
		out.Phase, out.Reason = s.Phase, s.Reason
	}
	for _, c := range s.Conditions {
		switch c.Type {
		case corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodReadyToStartContainers,
			corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		default:
			c.LastProbeTime.Reset()
			c.ObservedGeneration = 0 // the kubelet repeats conditions of others with its own count
			out.Conditions = append(out.Conditions, c)
		}
	}
	return out
}

// ShallowCopy returns an object whose metadata fields may be set.
func ShallowCopy(u *unstructured.Unstructured) *unstructured.Unstructured {
	object := maps.Clone(u.Object)
	if m, ok := object["metadata"].(map[string]any); ok {
		object["metadata"] = maps.Clone(m)
	}
	return &unstructured.Unstructured{Object: object}
}
