package kinds

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/references"
)

// A kubelet gives a container the addresses of the Services of its pod's namespace as environment variables, and those of
// default/kubernetes. Between the pods of a namespace and its Services the graph has a vertex that is never published.

// servicesResource is the resource of the vertex of a namespace's Services.
const servicesResource = "namespaceservices"

// Services is the kind of Services.
func Services() ID { return ID{Resource: "services"} }

// Slices is the kind of EndpointSlices.
func Slices() ID { return ID{Group: discoveryv1.GroupName, Resource: "endpointslices"} }

// ServicesOf returns the key of the vertex of a namespace's Services.
func ServicesOf(namespace string) wire.Key {
	return wire.Key{Group: "frond.io", Resource: servicesResource, Namespace: namespace, Name: "all"}
}

// IsServices reports whether a key belongs to the vertex of a namespace's Services.
func IsServices(key wire.Key) bool {
	return key.Group == "frond.io" && key.Resource == servicesResource
}

// APIService is the key of the Service of the API itself, which every node gets.
func APIService() wire.Key {
	return wire.Key{Resource: "services", Namespace: corev1.NamespaceDefault, Name: "kubernetes"}
}

// WantsServiceLinks reports whether a pod's containers get the addresses of the Services of its namespace.
func WantsServiceLinks(pod *corev1.Pod) bool {
	return pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
}

// podReferences returns what a pod needs, with the Services of its namespace.
func podReferences(pod *corev1.Pod) []wire.Key {
	refs := references.OfPod(pod)
	if WantsServiceLinks(pod) {
		refs = append(refs, ServicesOf(pod.Namespace))
	}
	return refs
}

func serviceOfSlice(o client.Object) string {
	return o.GetNamespace() + "/" + o.GetLabels()[discoveryv1.LabelServiceName]
}

// serviceKinds returns the kinds of Services.
func serviceKinds() []*Spec {
	return []*Spec{
		{
			GVK: corev1.SchemeGroupVersion.WithKind("Service"), Resource: "services", ByNeed: true,
			Object: func() client.Object { return &corev1.Service{} },
		},
		{
			GVK: discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), Resource: "endpointslices", ByNeed: true, Paced: true,
			Object:  func() client.Object { return &discoveryv1.EndpointSlice{} },
			Service: serviceOfSlice,
		},
	}
}
