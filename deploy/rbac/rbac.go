// Package rbac holds what cloudcore may do in a Kubernetes cluster, as manifests for kubectl and for frond.
package rbac

import _ "embed" // the manifests

//go:embed cloudcore.yaml
var cloudcore string

// Cloudcore is the manifest of cloudcore's rights, for its service account frond-system/cloudcore. Applying it again is harmless.
func Cloudcore() string { return cloudcore }
