// Package epoch detects that the Kubernetes API went back in time, as after a restore of etcd from a backup, and names
// the resulting history: the cluster epoch.
//
// A Lease in Kubernetes is a counter, and the hub keeps its last value: an etcd that is restored counts values again.
// All replicas share what they observe through the hub. A replica whose history went back ends with ErrRestored, as
// everything that it remembers is invalid.
package epoch
