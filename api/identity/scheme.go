package identity

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// AddToScheme registers the kind in a scheme.
func AddToScheme(s *runtime.Scheme) error {
	version := schema.GroupVersion{Group: Group, Version: Version}
	s.AddKnownTypes(version, &NodeIdentity{}, &NodeIdentityList{})
	metav1.AddToGroupVersion(s, version)
	return nil
}
