// Package identity holds what identity is made of: the kind that records a gateway's key, what a gateway shows the hub, and
// what it asks for to get in or to stay in.
//
// A gateway makes its key pair (a NATS user nkey) itself; the seed never leaves it. Kubernetes holds one NodeIdentity for
// each gateway, by the name of its Node: without it, or with another key, nobody is that node. The hub asks a cloudcore
// about each link (auth callout), and gets an account and a list of subjects, or a refusal.
//
// +groupName=identity.frond.io
// +versionName=v1alpha1
package identity
