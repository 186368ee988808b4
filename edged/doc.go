// Package edged runs the upstream kubelet inside the edge agent.
//
// It is configuration and wiring, nothing else: every pod decision is upstream's. The kubelet talks to one Kubernetes
// API, the rest.Config given to New (leaf/localapi in memory), and to one container runtime over CRI; it reads no
// kubeconfig. What a user may configure is the kubelet's own KubeletConfiguration (Config.DropIn).
//
// A kubelet is made to end with its process. Start returns soon after its context ends and cuts the kubelet off from the
// API and the log, but goroutines of upstream stay behind and upstream may call os.Exit on a fatal fault; containers run
// on untouched. Read DESIGN.md before starting a second one in the same process.
package edged
