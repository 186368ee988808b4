package payload

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// OfShare encodes a part of an object that New is not given whole. What changes with the parts of other nodes is not digested: the
// generation, and the time of the last change. The object is the caller's, as for New.
func OfShare(o client.Object) (Payload, error) {
	p := Payload{UID: string(o.GetUID()), Version: o.GetResourceVersion()}
	generation, annotations := o.GetGeneration(), o.GetAnnotations()
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
	o.SetGeneration(0)
	if _, ok := annotations[corev1.EndpointsLastChangeTriggerTime]; ok {
		rest := maps.Clone(annotations)
		delete(rest, corev1.EndpointsLastChangeTriggerTime)
		o.SetAnnotations(rest)
	}
	data, err := json.Marshal(o)
	if err != nil {
		return Payload{}, fmt.Errorf("encode: %w", err)
	}
	p.Digest = digestOf(data)
	o.SetResourceVersion(p.Version)
	o.SetGeneration(generation)
	o.SetAnnotations(annotations)
	if p.Object, err = json.Marshal(o); err != nil {
		return Payload{}, fmt.Errorf("encode: %w", err)
	}
	return p, nil
}
