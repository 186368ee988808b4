// Package kubelet runs the upstream kubelet inside the edge agent.
//
// It contains only configuration and wiring: every pod decision is upstream's. The kubelet uses one Kubernetes API, the
// rest.Config given to New (leaf/localapi in memory), and one container runtime over CRI; it reads no kubeconfig. Users
// configure the kubelet's own KubeletConfiguration (Config.DropIn).
//
// A kubelet is designed to end with its process. Start returns soon after its context ends and disconnects the kubelet from
// the API and the log. Goroutines of upstream remain, and upstream may call os.Exit on a fatal fault; containers keep
// running. Read DESIGN.md before starting a second kubelet in the same process.
package kubelet
