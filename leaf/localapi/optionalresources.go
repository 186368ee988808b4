package localapi

import (
	"encoding/json"
	"fmt"
	"net/http"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1alpha1 "k8s.io/api/certificates/v1alpha1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
)

// fieldNodeName is the field label by which a kubelet and its drivers select the objects of their Node.
const fieldNodeName = "spec.nodeName"

// optionalResources returns the kinds that not every Kubernetes serves. The cloud sends the objects that concern this node,
// and announces that it does (wire.DeliveredKinds). Without that announcement nothing is known about them.
func optionalResources() []*resource {
	certs, devices := certificatesv1.SchemeGroupVersion, resourcev1.SchemeGroupVersion
	bundles := func(gv schema.GroupVersion, object, list func() runtime.Object) *resource {
		return &resource{
			gvr: gv.WithResource("clustertrustbundles"), kind: "ClusterTrustBundle", singular: "clustertrustbundle", optional: true,
			unlisted: gv != certs, object: object, list: list, selectable: trustBundleFields,
		}
	}
	return []*resource{
		bundles(certs, func() runtime.Object { return &certificatesv1.ClusterTrustBundle{} },
			func() runtime.Object { return &certificatesv1.ClusterTrustBundleList{} }),
		// A kubelet takes the version that the cluster serves. The fields of a bundle that it reads are the same in all versions.
		bundles(certificatesv1beta1.SchemeGroupVersion, func() runtime.Object { return &certificatesv1beta1.ClusterTrustBundle{} },
			func() runtime.Object { return &certificatesv1beta1.ClusterTrustBundleList{} }),
		bundles(certificatesv1alpha1.SchemeGroupVersion, func() runtime.Object { return &certificatesv1alpha1.ClusterTrustBundle{} },
			func() runtime.Object { return &certificatesv1alpha1.ClusterTrustBundleList{} }),
		{
			gvr: certs.WithResource("podcertificaterequests"), kind: "PodCertificateRequest", singular: "podcertificaterequest",
			namespaced: true, optional: true, ofNode: true,
			object:     func() runtime.Object { return &certificatesv1.PodCertificateRequest{} },
			list:       func() runtime.Object { return &certificatesv1.PodCertificateRequestList{} },
			selectable: certificateRequestFields,
		},
		{
			gvr: devices.WithResource("resourceclaims"), kind: "ResourceClaim", singular: "resourceclaim", namespaced: true, optional: true,
			object: func() runtime.Object { return &resourcev1.ResourceClaim{} },
			list:   func() runtime.Object { return &resourcev1.ResourceClaimList{} },
		},
		{
			gvr: devices.WithResource("resourceslices"), kind: "ResourceSlice", singular: "resourceslice", optional: true, ofNode: true,
			object:     func() runtime.Object { return &resourcev1.ResourceSlice{} },
			list:       func() runtime.Object { return &resourcev1.ResourceSliceList{} },
			selectable: sliceFields,
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
	return fields.Set{fieldNodeName: node, resourcev1.ResourceSliceSelectorDriver: spec.Driver}
}

// checkKindDelivered returns the cloud's announcement about an optional kind. The error is a status: the cluster does not
// have the kind, or the cloud has not announced whether it sends it.
func (s *Server) checkKindDelivered(r *resource) error {
	unknown := func(why string) error {
		return newRetryLater(fmt.Sprintf("%s are not known on this gateway: %s", r.gvr.GroupResource(), why))
	}
	entry, err := s.store.Get(wire.DeliveredKindsKey())
	if err != nil {
		return unknown("the cloud has not said that it sends them; an older cloudcore does not")
	}
	var kinds wire.DeliveredKinds
	if err := json.Unmarshal(entry.Object, &kinds); err != nil {
		return unknown("what the cloud says of its kinds is not readable")
	}
	k, ok := kinds.Find(r.gvr.Group, r.gvr.Resource)
	switch {
	case !ok:
		return unknown("the cloud does not know yet whether its Kubernetes serves them")
	case k.Version != "":
		return nil
	case k.Absence == wire.KindForbidden:
		return unknown("cloudcore may not read them; apply its roles (deploy/rbac)")
	}
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "list", r.gvr.GroupResource(), "",
		"the Kubernetes of this gateway does not serve them in any version that the gateway knows", 0, false)
}
