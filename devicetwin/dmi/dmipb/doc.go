// Package dmipb is KubeEdge's device mapper interface (DMI) v1beta1 as generated code: messages and the two services. `make generate` writes it.
//
// The names on the wire are KubeEdge's; the names of the messages inside this process are not, because the kubelet's device plugin API has the same.
package dmipb
