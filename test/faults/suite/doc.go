// Package suite runs the plans of package faults against a real cluster of its own: etcd, a control plane, three hub servers, two
// cloudcores and three gateways, each a process. It contains only tests.
package suite
