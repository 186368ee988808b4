package kinds

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// Optional is a kind that reaches nodes without a scope where the apiserver serves it: it came with a later version of
// Kubernetes than the oldest supported one, a feature gate disables it, or its CustomResourceDefinition is not installed.
type Optional struct {
	ID ID
	// Kind is its name in the API. Versions are those that Frond knows, the preferred first; their fields are the same
	// as far as Frond or a kubelet reads them.
	Kind     string
	Versions []string
	// Referrer is the optional kind by whose objects alone nodes need those of this kind; zero: pods need them, or a node is named in them. While
	// the Referrer is not synced, it is not known which objects nodes need.
	Referrer ID
	// spec is without the version.
	spec Spec
}

// Spec returns the kind's description in a version.
func (o Optional) Spec(version string) *Spec {
	k := o.spec
	k.Resource, k.GVK = o.ID.Resource, o.GVK(version)
	return &k
}

// GVK returns the kind's name in a version.
func (o Optional) GVK(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: o.ID.Group, Version: version, Kind: o.Kind}
}

// OptionalTable returns the optional kinds.
func OptionalTable() []Optional {
	ofNode := func(o client.Object) string { return nestedString(o, "spec", "nodeName") }
	return []Optional{
		{ID: TrustBundles(), Kind: "ClusterTrustBundle", Versions: []string{"v1", "v1beta1", "v1alpha1"}, spec: Spec{Signer: signerOf}},
		// A kubelet watches the requests that it makes, selected by its Node; the signer's answer is in their status.
		{
			ID: ID{references.CertificatesGroup, "podcertificaterequests"}, Kind: "PodCertificateRequest", Versions: []string{"v1"},
			spec: Spec{NodeOf: ofNode},
		},
		{ID: ID{references.ResourceGroup, references.ClaimsResource}, Kind: "ResourceClaim", Versions: []string{"v1"}},
		// A driver of a node's devices lists and watches the slices that it publishes, selected by its Node.
		{ID: ID{references.ResourceGroup, "resourceslices"}, Kind: "ResourceSlice", Versions: []string{"v1"}, spec: Spec{NodeOf: ofNode}},
		// KubeEdge's devices. A device's node also needs its model. Their older version has other fields, and converts to none of these.
		{
			ID: deviceKind(devices.DevicesResource), Kind: devices.DeviceKind, Versions: []string{devices.Version},
			spec: Spec{NodeOf: deviceNode, Withheld: deviceWithheld, References: deviceReferences},
		},
		{
			ID: deviceKind(devices.DeviceModelsResource), Kind: devices.DeviceModelKind, Versions: []string{devices.Version},
			Referrer: deviceKind(devices.DevicesResource),
		},
		// The steps of jobs. A gateway also needs the Secret with the credentials of registries, as long as it has the step.
		{
			ID: ID{jobs.Group, jobs.NodeTasksResource}, Kind: jobs.NodeTaskKind, Versions: []string{jobs.Version},
			spec: Spec{NodeOf: ofNode, References: taskReferences},
		},
	}
}

func deviceKind(resource string) ID { return ID{devices.Group, resource} }

// deviceNode returns the node to which a Device is delivered.
func deviceNode(o client.Object) string {
	device, ok := o.(*unstructured.Unstructured)
	if !ok {
		return ""
	}
	return devices.DeliveredTo(device)
}

// deviceWithheld reports whether a Device is on the move to a node, or from it.
func deviceWithheld(o client.Object, node string) bool {
	device, ok := o.(*unstructured.Unstructured)
	return ok && devices.WithheldFrom(device, node)
}

// deviceReferences returns a device's model.
func deviceReferences(o client.Object) []wire.Key {
	return references.OfDevice(o.GetNamespace(), nestedString(o, "spec", "deviceModelRef", "name"))
}

// taskReferences returns the Secret that a step of a job needs.
func taskReferences(o client.Object) []wire.Key {
	name, namespace := nestedString(o, "spec", "imagePrePull", "secret", "name"), nestedString(o, "spec", "imagePrePull", "secret", "namespace")
	if name == "" || namespace == "" {
		return nil
	}
	return []wire.Key{{Resource: "secrets", Namespace: namespace, Name: name}}
}

// nestedString reads a string field of an unstructured object; "" if there is none.
func nestedString(o client.Object, path ...string) string {
	u, ok := o.(*unstructured.Unstructured)
	if !ok {
		return ""
	}
	value, _, _ := unstructured.NestedString(u.Object, path...)
	return value
}

// OptionalByID returns the kinds of OptionalTable by their ID.
func OptionalByID() map[ID]Optional {
	byID := map[ID]Optional{}
	for _, o := range OptionalTable() {
		byID[o.ID] = o
	}
	return byID
}
