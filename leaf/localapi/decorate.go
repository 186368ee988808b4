package localapi

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
)

// Some objects are served differently from the cloud's state, so that programs on the gateway use the local API with
// unchanged manifests and find everything that they need to be ready. The store and its inventory keep the cloud's state.

const (
	rootCAConfigMap = "kube-root-ca.crt"
	rootCAKey       = "ca.crt"
)

// decoratorFor returns the function that changes a resource's objects on their way to clients, or nil.
func (s *Server) decoratorFor(r *kinds.Resource) func(runtime.Object) {
	if r.GVR == kinds.StorageResource("csinodes") {
		return s.setCSINodeOwner
	}
	if s.podServer == nil {
		return nil
	}
	switch r.GVR {
	case kinds.CoreResource("configmaps"):
		return s.addLocalCA
	case discoveryv1.SchemeGroupVersion.WithResource("endpointslices"):
		return s.replaceAPIEndpoint
	}
	return nil
}

// addLocalCA adds the gateway's CA to the CA bundle with which every pod verifies the API.
func (s *Server) addLocalCA(obj runtime.Object) {
	cm := obj.(*corev1.ConfigMap)
	bundle, ok := cm.Data[rootCAKey]
	if cm.Name != rootCAConfigMap || !ok || bytes.Contains([]byte(bundle), s.podServer.ca.CertPEM) {
		return
	}
	if bundle != "" && bundle[len(bundle)-1] != '\n' {
		bundle += "\n"
	}
	cm.Data[rootCAKey] = bundle + string(s.podServer.ca.CertPEM)
}

// replaceAPIEndpoint makes the local API the one endpoint of the Service default/kubernetes, for proxies of Services: the
// addresses of the apiservers belong to the cloud's network.
func (s *Server) replaceAPIEndpoint(obj runtime.Object) {
	slice := obj.(*discoveryv1.EndpointSlice)
	address := s.cfg.Pods.Address
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
func (s *Server) setCSINodeOwner(obj runtime.Object) {
	csi := obj.(*storagev1.CSINode)
	if csi.Name != s.cfg.Node {
		return
	}
	key := wire.Key{Resource: "nodes", Name: s.cfg.Node}
	entry, err := s.store.Get(key)
	if err != nil {
		return
	}
	uid := types.UID(entry.UID)
	if uid == "" {
		uid = kinds.ProvisionalUID(key)
	}
	csi.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: s.cfg.Node, UID: uid}}
}
