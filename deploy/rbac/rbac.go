// Package rbac holds what cloudcore may do in a Kubernetes cluster, as manifests for kubectl and for frond.
package rbac

import _ "embed" // the manifests

//go:embed cloudcore.yaml
var cloudcore string

//go:embed classic-impersonation.yaml
var classicImpersonation string

// ClassicImpersonation is the manifest of the rights that cloudcore needs in addition where constrained impersonation is missing. Who applies
// it lets cloudcore act as any user.
func ClassicImpersonation() string { return classicImpersonation }

// Cloudcore is the manifest of cloudcore's rights, for its service account frond-system/cloudcore. Applying it again is harmless.
func Cloudcore() string { return cloudcore }
