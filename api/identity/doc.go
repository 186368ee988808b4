// Package identity defines the data of gateways' identities: the kind that records a gateway's key, the credential that a gateway
// presents to the hub, and the requests with which it enrols and renews its key.
//
// A gateway creates its key pair (a NATS user nkey) itself; the seed never leaves it. Kubernetes holds one NodeIdentity for each
// gateway, by the name of its Node: without it, or with another key, no link is admitted as that node. For each link the hub asks a
// cloudcore (auth callout), which answers with an account and a list of subjects, or a refusal.
//
// +groupName=identity.frond.io
// +versionName=v1alpha1
package identity
