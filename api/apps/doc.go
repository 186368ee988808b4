// Package apps holds the kinds of KubeEdge's group apps.kubeedge.io, field by field as users have them in their files and
// clusters. NodeGroup is here so far.
//
// +groupName=apps.kubeedge.io
// +versionName=v1alpha1
package apps
