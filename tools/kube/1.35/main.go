// Command 1.35 is the control plane of Kubernetes 1.35: kube-apiserver, kube-controller-manager and kube-scheduler in one file. The base name
// of its first word chooses among them. Each is upstream's command, unchanged; etcd and kubectl are those of the folder above.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client and work queue metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() { os.Exit(run(filepath.Base(os.Args[0]))) }

func run(name string) int {
	switch name {
	case "kube-apiserver":
		return cli.Run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		return cli.Run(controllermanager.NewControllerManagerCommand())
	case "kube-scheduler":
		return cli.Run(scheduler.NewSchedulerCommand())
	default:
		fmt.Fprintln(os.Stderr, "call this program kube-apiserver, kube-controller-manager or kube-scheduler")
		return 2
	}
}
