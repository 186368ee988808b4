// Package operations defines the jobs of KubeEdge's API group operations.kubeedge.io, in its version v1alpha2, field by field as they are in users'
// files and clusters. It holds ImagePrePullJob so far.
//
// +groupName=operations.kubeedge.io
// +versionName=v1alpha2
package operations
