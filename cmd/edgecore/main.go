// Command edgecore is the agent of one gateway: a NATS leaf node, the node's store, a local Kubernetes API and the kubelet in one
// process, with one outbound connection. It needs root, except with the hollow runtime.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/net/http/httpproxy"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/edgenode"
	"github.com/frond-edge/frond/internal/enrol"
	"github.com/frond-edge/frond/internal/logging"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, "edgecore:", err) // nowhere else to say it
		return 1
	}
	return 0
}

func command() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:           "edgecore --config FILE",
		Short:         "The agent of a gateway",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), file) },
	}
	cmd.Flags().StringVar(&file, "config", "/etc/frond/edgecore.yaml", "configuration file")
	cmd.AddCommand(&cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.Version())
			return err
		},
	})
	return cmd
}

func serve(ctx context.Context, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := config.ParseEdgeCore(data)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	log, err := logging.New(cfg.LogLevel)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	node, err := edgenode.New(cfg, enrol.Proxy(cfg.Hub.Proxy, httpproxy.FromEnvironment()), metrics, log)
	if err != nil {
		return fmt.Errorf("configuration %s: %w", file, err)
	}
	log.Info("edgecore starting", zap.String("version", buildinfo.Version()), zap.String("node", cfg.Node))
	err = node.Start(ctx)
	if err == nil {
		log.Info("edgecore stopped")
	}
	return err
}
