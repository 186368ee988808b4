// Package policy holds the ValidatingAdmissionPolicies that frond init installs, as manifests for kubectl and for frond: pods of
// protected namespaces stay off gateways, what cannot be made again is not deleted by mistake, and cloudcore changes nothing of a Device but its
// claim and its status.
//
// They need Kubernetes 1.30 or later and no right of cloudcore's. An administrator who deletes a policy is not held back by it.
package policy

import _ "embed" // the manifests

// BindingsPolicy is the policy that lets schedulers alone bind pods of protected namespaces; SchedulersVariable is its variable with the
// list of their user names, as CEL.
const (
	BindingsPolicy     = "frond-protected-bindings"
	SchedulersVariable = "schedulers"
)

// DefaultScheduler is the user that kube-scheduler is in every cluster unless its administrator chose otherwise.
const DefaultScheduler = "system:kube-scheduler"

//go:embed protected-namespaces.yaml
var protectedNamespaces string

//go:embed deletion-protection.yaml
var deletionProtection string

//go:embed device-claims.yaml
var deviceClaims string

// DeviceClaims is the policy of Devices, with its binding.
func DeviceClaims() string { return deviceClaims }

// Manifests are the policies and their bindings, as YAML with several objects each.
func Manifests() []string { return []string{protectedNamespaces, deletionProtection, deviceClaims} }
