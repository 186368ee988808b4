// Command edgecore is the agent of one gateway: a NATS leaf node, the node's store, a local Kubernetes API and the kubelet in one
// process, with one outbound connection. It needs root, except with the hollow runtime.
package main

import (
	"context"
	"os"

	"go.uber.org/zap"
	"golang.org/x/net/http/httpproxy"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/agent"
	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/enrollexec"
	"github.com/frond-edge/frond/edged/heaprelease"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/logging"
	"github.com/frond-edge/frond/internal/program"
)

func main() {
	heaprelease.LimitGarbage(os.Getenv("GOGC"))
	edgecore := program.Program{Name: "edgecore", Short: "The agent of a gateway", Serve: serveEdgecore, Commands: []*cobra.Command{newEnroll()}}
	os.Exit(edgecore.Run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// newEnroll is what frond join runs.
func newEnroll() *cobra.Command {
	return &cobra.Command{
		Use:    enrollexec.Subcommand,
		Short:  "Enrol this machine, for frond join",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return enrollexec.Serve(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), enroll.JoinWith)
		},
	}
}

func serveEdgecore(ctx context.Context, data []byte) error {
	cfg, err := config.ParseEdgeCore(data)
	if err != nil {
		return err
	}
	log, err := logging.New(cfg.LogLevel)
	if err != nil {
		return err
	}
	node, err := agent.New(cfg, hubca.Proxy(cfg.Hub.Proxy, httpproxy.FromEnvironment()), program.Metrics(), log)
	if err != nil {
		return err
	}
	log.Info("edgecore starting", zap.String("version", buildinfo.Version()), zap.String("node", cfg.Node))
	err = node.Start(ctx)
	if err == nil {
		log.Info("edgecore stopped")
	}
	return err
}
