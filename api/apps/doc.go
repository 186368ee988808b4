// Package apps defines the kinds of KubeEdge's API group apps.kubeedge.io, field by field as they are in users' files and clusters. It
// holds NodeGroup so far.
//
// +groupName=apps.kubeedge.io
// +versionName=v1alpha1
package apps
