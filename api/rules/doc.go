// Package rules defines the kinds of KubeEdge's API group rules.kubeedge.io, field by field as they are in users' files and clusters: Rule and
// RuleEndpoint.
//
// +groupName=rules.kubeedge.io
// +versionName=v1
package rules
