// Command kube is Kubernetes in one file, for development and tests: the control plane, and what a node may have of its own.
//
// It is a multi-call program: the base name of its first word, or else its first argument, chooses among etcd, kube-apiserver,
// kube-controller-manager, kube-scheduler, kubectl, kubelet, kube-proxy and metrics-server. Each is upstream's command,
// unchanged, so every flag and exit code is upstream's. Symlinks with those names serve as KUBEBUILDER_ASSETS.
//
// The components cannot share one process through their commands (each installs the process-wide signal handler), so
// the caller starts one process for each.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client and work queue metrics on /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	"k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
	metricsserver "sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)

const usage = "usage: kube {etcd|kube-apiserver|kube-controller-manager|kube-scheduler|kubectl|kubelet|kube-proxy|metrics-server} [flags]"

func main() { os.Exit(run(os.Args)) }

// run dispatches on the program's name, then on its first argument. It leaves the chosen command's own words in
// os.Args, where that command looks for them.
func run(args []string) int {
	name := filepath.Base(args[0])
	if !known(name) {
		if len(args) < 2 || !known(args[1]) {
			fmt.Fprintln(os.Stderr, usage)
			return 2
		}
		name, args = args[1], args[1:]
	}
	os.Args = append([]string{name}, args[1:]...)
	return call(name)
}

func known(name string) bool {
	switch name {
	case "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy", "metrics-server":
		return true
	}
	return false
}

func call(name string) int {
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return 0
	case "kube-apiserver":
		return cli.Run(apiserver.NewAPIServerCommand())
	case "kube-controller-manager":
		return cli.Run(controllermanager.NewControllerManagerCommand())
	case "kube-scheduler":
		return cli.Run(scheduler.NewSchedulerCommand())
	case "metrics-server":
		return cli.Run(metricsserver.NewMetricsServerCommand(genericapiserver.SetupSignalHandler()))
	case "kubelet":
		return cli.Run(kubelet.NewKubeletCommand(context.Background()))
	case "kube-proxy":
		return cli.Run(proxy.NewProxyCommand())
	default:
		if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
			return 1 // kubectl has printed it
		}
		return 0
	}
}
