package localapi

import (
	"bytes"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/store"
)

// Some objects are served differently from the cloud's state, so that programs on the gateway use the local API with
// unchanged manifests and find everything that they need to be ready. The store and its inventory keep the cloud's state.

const (
	rootCAConfigMap = "kube-root-ca.crt"
	rootCAKey       = "ca.crt"
)

// decorator changes objects on their way to clients.
type decorator struct {
	node       string
	store      *store.Store
	podAddress netip.AddrPort
	caPEM      []byte // the certificate of the gateway's CA; nil if pods are not served
}

// decoratorFor returns the function that changes a resource's objects, or nil.
func (d *decorator) decoratorFor(r *kinds.Resource) func(runtime.Object) {
	if r.GVR == kinds.StorageResource("csinodes") {
		return d.setCSINodeOwner
	}
	if d.caPEM == nil {
		return nil
	}
	switch r.GVR {
	case kinds.CoreResource("configmaps"):
		return d.addLocalCA
	case discoveryv1.SchemeGroupVersion.WithResource("endpointslices"):
		return d.replaceAPIEndpoint
	}
	return nil
}

// addLocalCA adds the gateway's CA to the CA bundle with which every pod verifies the API.
func (d *decorator) addLocalCA(obj runtime.Object) {
	cm := obj.(*corev1.ConfigMap)
	bundle, ok := cm.Data[rootCAKey]
	if cm.Name != rootCAConfigMap || !ok || bytes.Contains([]byte(bundle), d.caPEM) {
		return
	}
	if bundle != "" && bundle[len(bundle)-1] != '\n' {
		bundle += "\n"
	}
	cm.Data[rootCAKey] = bundle + string(d.caPEM)
}

// replaceAPIEndpoint makes the local API the one endpoint of the Service default/kubernetes, for proxies of Services: the
// addresses of the apiservers belong to the cloud's network.
func (d *decorator) replaceAPIEndpoint(obj runtime.Object) {
	slice := obj.(*discoveryv1.EndpointSlice)
	address := d.podAddress
	if !address.IsValid() || slice.Namespace != "default" || slice.Labels[discoveryv1.LabelServiceName] != "kubernetes" {
		return
	}
	family := discoveryv1.AddressTypeIPv4
	if address.Addr().Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	if slice.Endpoints = nil; slice.AddressType != family {
		return
	}
	yes, port := true, int32(address.Port())
	slice.Endpoints = []discoveryv1.Endpoint{{
		Addresses: []string{address.Addr().String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
	}}
	for i := range slice.Ports {
		slice.Ports[i].Port = &port
	}
}

// setCSINodeOwner makes the node's own Node the owner of its CSINode, by the UID that is served for it. A kubelet that finds
// another owner, or none, removes the CSINode and is not ready meanwhile. A Node created without a link gets another UID later.
func (d *decorator) setCSINodeOwner(obj runtime.Object) {
	csi := obj.(*storagev1.CSINode)
	if csi.Name != d.node {
		return
	}
	key := wire.Key{Resource: "nodes", Name: d.node}
	entry, err := d.store.Get(key)
	if err != nil {
		return
	}
	uid := types.UID(entry.UID)
	if uid == "" {
		uid = kinds.ProvisionalUID(key)
	}
	csi.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: d.node, UID: uid}}
}
