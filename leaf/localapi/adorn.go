package localapi

import (
	"bytes"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Two objects are shown otherwise than the cloud has them, so that what runs here comes to the local API with nothing
// changed in its manifests. The store and its census keep the cloud's own words.

const (
	rootCA    = "kube-root-ca.crt"
	rootCAKey = "ca.crt"
)

// adorned returns the function that changes a resource's objects on their way to clients, or nil.
func (s *Server) adorned(r *resource) func(runtime.Object) {
	if s.pods == nil {
		return nil
	}
	switch r.gvr {
	case v1("configmaps"):
		return s.trustLocal
	case discoveryv1.SchemeGroupVersion.WithResource("endpointslices"):
		return s.leadLocal
	}
	return nil
}

// trustLocal adds the gateway's CA to the bundle that every pod gets to check the API by.
func (s *Server) trustLocal(obj runtime.Object) {
	cm := obj.(*corev1.ConfigMap)
	bundle, ok := cm.Data[rootCAKey]
	if cm.Name != rootCA || !ok || bytes.Contains([]byte(bundle), s.pods.ca.pem) {
		return
	}
	if bundle != "" && bundle[len(bundle)-1] != '\n' {
		bundle += "\n"
	}
	cm.Data[rootCAKey] = bundle + string(s.pods.ca.pem)
}

// leadLocal makes the local API the one endpoint of the Service default/kubernetes, for proxies of Services: the addresses
// of the apiservers are of the cloud's network.
func (s *Server) leadLocal(obj runtime.Object) {
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
