package kinds

import (
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1alpha1 "k8s.io/api/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/devices"
)

// FieldNodeName is the field label by which a kubelet and its drivers select the objects of their Node.
const FieldNodeName = "spec.nodeName"

// optionalResources returns the kinds that not every Kubernetes serves. The cloud sends the objects that concern this node,
// and announces that it does (wire.DeliveredKinds). Without that announcement nothing is known about them.
func optionalResources() []*Resource {
	certs, resources, kubeEdge := certificatesv1.SchemeGroupVersion, resourcev1.SchemeGroupVersion, devices.GroupVersion()
	bundles := func(gv schema.GroupVersion) *Resource {
		return &Resource{
			GVR: gv.WithResource("clustertrustbundles"), Kind: "ClusterTrustBundle", Optional: true, Unlisted: gv != certs, selectable: trustBundleFields,
		}
	}
	return []*Resource{
		bundles(certs),
		// A kubelet takes the version that the cluster serves. The fields of a bundle that it reads are the same in all versions.
		bundles(certificatesv1beta1.SchemeGroupVersion),
		bundles(certificatesv1alpha1.SchemeGroupVersion),
		{
			GVR: certs.WithResource("podcertificaterequests"), Kind: "PodCertificateRequest",
			Namespaced: true, Optional: true, OfNode: true,
			selectable: certificateRequestFields,
		},
		{GVR: resources.WithResource("resourceclaims"), Kind: "ResourceClaim", Namespaced: true, Optional: true},
		{
			GVR: resources.WithResource("resourceslices"), Kind: "ResourceSlice", Optional: true, OfNode: true,
			selectable: sliceFields,
		},
		// Schemaless, so that clients see fields that Frond does not know.
		{
			GVR: kubeEdge.WithResource(devices.DevicesResource), Kind: devices.DeviceKind, Namespaced: true, Completeness: Authoritative, Optional: true, OfNode: true,
			selectable: func(o runtime.Object) fields.Set { return fields.Set{FieldNodeName: nestedString(o, FieldNodeName)} },
			columns:    columnDefinitions("Name", "Model", "Node", "Age"), cells: nestedCells("spec.deviceModelRef.name", FieldNodeName),
		},
		{
			GVR: kubeEdge.WithResource(devices.DeviceModelsResource), Kind: devices.DeviceModelKind, Namespaced: true, Optional: true,
			columns: columnDefinitions("Name", "Protocol", "Age"), cells: nestedCells("spec.protocol"),
		},
	}
}

func trustBundleFields(obj runtime.Object) fields.Set {
	signer := ""
	switch o := obj.(type) {
	case *certificatesv1.ClusterTrustBundle:
		signer = o.Spec.SignerName
	case *certificatesv1beta1.ClusterTrustBundle:
		signer = o.Spec.SignerName
	case *certificatesv1alpha1.ClusterTrustBundle:
		signer = o.Spec.SignerName
	}
	return fields.Set{"spec.signerName": signer}
}

func sliceFields(obj runtime.Object) fields.Set {
	spec := &obj.(*resourcev1.ResourceSlice).Spec
	node := ""
	if spec.NodeName != nil {
		node = *spec.NodeName
	}
	return fields.Set{FieldNodeName: node, resourcev1.ResourceSliceSelectorDriver: spec.Driver}
}

// nestedCells returns a function for the cells of a schemaless object: its name, some string fields, and its age.
func nestedCells(paths ...string) func(runtime.Object) []any {
	return func(o runtime.Object) []any {
		cells := []any{o.(metav1.Object).GetName()}
		for _, path := range paths {
			cells = append(cells, nestedString(o, path))
		}
		return append(cells, formatAge(o.(metav1.Object).GetCreationTimestamp()))
	}
}

func nestedString(obj runtime.Object, path string) string {
	value, _, _ := unstructured.NestedString(obj.(*unstructured.Unstructured).Object, strings.Split(path, ".")...)
	return value
}
