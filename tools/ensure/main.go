// Command ensure builds missing programs of a development cluster into the cache, and prints their paths.
//
//	go run ./tools/ensure -kube -node -nats -dns -frond
//
// Results go to stdout as JSON, progress to stderr. With -ldflags it prints only the linker's flags for Frond.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/frond-edge/frond/internal/toolchain"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var req toolchain.Request
	flags := flag.NewFlagSet("ensure", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&req.Kube, "kube", false, "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kubelet, kube-proxy")
	flags.BoolVar(&req.Node, "node", false, "containerd, runc, CNI plugins, images")
	flags.BoolVar(&req.Machines, "machines", false, "what tests with gateways as machines of their own need of this one, by apt-get")
	flags.BoolVar(&req.Nats, "nats", false, "nats-server")
	flags.BoolVar(&req.DNS, "dns", false, "coredns")
	flags.BoolVar(&req.Frond, "frond", false, "cloudcore, edgecore, frond")
	flags.BoolVar(&req.Helm, "helm", false, "helm")
	flags.BoolVar(&req.Conformance, "conformance", false, "Kubernetes' end-to-end tests and their images")
	flags.StringVar(&req.Cache, "cache", "", "where to keep them (default $FROND_CACHE, else frond in your cache folder)")
	ldflags := flags.Bool("ldflags", false, "print the -ldflags that stamp Frond's programs, build nothing")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *ldflags {
		text, err := toolchain.LinkerFlags(ctx, "")
		if err != nil {
			fmt.Fprintln(stderr, "ensure:", err)
			return 1
		}
		fmt.Fprintln(stdout, text)
		return 0
	}
	paths, err := toolchain.Ensure(ctx, req, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "ensure:", err)
		return 1
	}
	enc := json.NewEncoder(stdout)
	enc.SetIndent("", "  ")
	if err := enc.Encode(paths); err != nil {
		fmt.Fprintln(stderr, "ensure:", err)
		return 1
	}
	return 0
}
